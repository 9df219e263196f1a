"""What requests hold and begin together is counted once, and released with the work it was for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.admission import BodyLimit
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.service import GroupRules
from rewardlab.types import Message
from tests.support.images import png
from tests.support.servers import running

PLAIN = load_template("plain")


def first(prompt: tuple[Message, ...], draw: int) -> str:
    return "<think>x</think><answer>1</answer>"


class HeldMedia(Media):
    """Images that are read when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def read(self, reference: str, where: str, *, video: bool = False) -> bytes:
        self.begun.set()
        assert self.go_on.wait(20)
        return super().read(reference, where, video=video)


def admission_of(app: FastAPI) -> Any:
    return next(middleware.kwargs["admission"] for middleware in app.user_middleware if middleware.cls is BodyLimit)


async def until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_done():
            await asyncio.sleep(0.01)


def serve(app: FastAPI, main: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def with_client(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await main(client)

    with running(app) as url:
        asyncio.run(with_client(url))


@pytest.mark.parametrize("strategy", ["all_pairs", "circular"])
def test_nothing_is_left_of_a_group_whose_last_member_hangs_up(strategy: str) -> None:
    """The images of the group are held by the group, not by the request that completed it."""
    media, rules = HeldMedia(), GroupRules(strategy=strategy, group_size=2, group_timeout_s=20)
    app = create_app(GenerativeJudge(ScriptedSampler(first), PLAIN), rules=rules, media=media)
    name = media.upload(png((300, 300)))

    async def main(client: httpx.AsyncClient) -> None:
        async def send(response: str) -> httpx.Response:
            label = {"media": [f"upload:{name}"]}
            return await client.post("/slime", json={"prompt": "q", "response": response, "label": label})

        buffer, admission = app.state.service.group_buffer, admission_of(app)
        one = asyncio.create_task(send("a"))
        await until(lambda: buffer.num_waiting == 1)
        last = asyncio.create_task(send("b"))
        await until(media.begun.is_set)
        held = admission.num_bytes
        last.cancel()
        await until(lambda: admission.num_bytes < held)
        media.go_on.set()
        assert (await one).status_code == 200
        await until(lambda: not admission.num_bytes)

    serve(app, main)


def test_responses_that_come_alone_count_as_comparisons() -> None:
    """Of a key that has as many in progress as it may, the next full group is refused; when there is room again, it is not."""
    gate, drawn = threading.Event(), threading.Event()

    def held(prompt: tuple[Message, ...], draw: int) -> str:
        drawn.set()
        assert gate.wait(20)
        return first(prompt, draw)

    rules, limits = GroupRules(group_size=3, group_timeout_s=20), Limits(key_comparisons=5)
    app = create_app(GenerativeJudge(ScriptedSampler(held), PLAIN), rules=rules, limits=limits)

    async def main(client: httpx.AsyncClient) -> None:
        def send_group(prompt: str) -> asyncio.Future[list[httpx.Response]]:
            return asyncio.gather(*(client.post("/slime", json={"prompt": prompt, "response": text}) for text in "abc"))

        begun = send_group("q")
        await until(drawn.is_set)
        for answer in await send_group("another q"):
            assert (answer.status_code, "key_comparisons" in answer.text) == (429, True)
        gate.set()
        assert {answer.status_code for answer in await begun} == {200}
        assert {answer.status_code for answer in await send_group("another q")} == {200}

    serve(app, main)
