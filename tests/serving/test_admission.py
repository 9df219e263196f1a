"""What requests hold and begin together is counted once, and released with the work it was for."""

from __future__ import annotations

import asyncio
import io
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from rewardlab.serving.admission import Admission
from rewardlab.serving.errors import OverloadedError, RequestTooLargeError
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.middleware import BodyLimit
from rewardlab.serving.service import GroupRules
from rewardlab.types import Message
from tests.support.images import png
from tests.support.scripted_judge import CHATML
from tests.support.servers import running
from tests.support.serving import app_of


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


def test_what_one_request_holds_together() -> None:
    """What does not fit though nothing else is held is refused for good; what others leave no room for may come again. An
    image counts once, and until the last one that holds it ends."""
    admission, image = Admission(Limits(held_bytes=100)), bytes(60)
    one, other = admission.open(""), admission.open("")
    one.take_bytes(30)
    with pytest.raises(RequestTooLargeError, match="held_bytes"):
        one.take_bytes(71)
    parts = one.part(), one.part()
    for share in (*parts, parts[0]):
        share.take_image(image)
    assert admission.num_bytes == 90
    with pytest.raises(OverloadedError, match="held_bytes"):
        other.take_bytes(11)
    with pytest.raises(OverloadedError, match="held_bytes"):
        one.part().take_bytes(11)
    parts[0].release()
    assert admission.num_bytes == 90
    parts[1].release()
    parts[1].take_image(image)  # by a thread that ends later
    assert admission.num_bytes == 30
    one.release()
    assert admission.num_bytes == 0


@pytest.mark.slow
def test_parts_of_a_request_wait_for_each_other() -> None:
    """A batch and groups with more images than there is room for are judged all the same, as the parts before them end; one
    that does not fit by itself is refused for good."""
    app = app_of(first, limits=Limits(held_bytes=1_000_000))

    async def main(client: httpx.AsyncClient) -> None:
        small = [await upload(client, (200 + n, 200)) for n in range(16)]  # 120 kB each
        pairs = [{"question": "q", "responses": ["a", "b"], "images": small[n : n + 4]} for n in range(0, 16, 2)]
        answers = (await client.post("/v1/judge/batch", json=pairs)).json()
        assert [answer.get("outcome", answer) for answer in answers] == ["tie"] * 8
        groups = [{"question": "q", "responses": ["a", "b"], "images": small[n : n + 4]} for n in range(0, 16, 2)]
        assert all("rewards" in answer for answer in (await client.post("/v1/rewards/batch", json=groups)).json())
        samples = {
            "query": [f"{CHATML.format(q=n)}x" for n in range(16)],
            "labels": [{"media": [name], "anchor": "y"} for name in small],
        }
        assert (await client.post("/get_reward", json=samples)).status_code == 200
        large = {"question": "q", "responses": ["a", "b"], "images": small}
        answer = await client.post("/v1/judge", json=large)
        assert (answer.status_code, "Retry-After" in answer.headers, "held_bytes" in answer.text) == (413, False, True)
        assert [row["status"] for row in (await client.post("/v1/judge/batch", json=[large] * 2)).json()] == ["toolarge"] * 2
        repeated = pairs[0] | {"images": small[:1] * 16}
        assert (await client.post("/v1/judge", json=repeated)).status_code == 200
        await until(lambda: not admission_of(app).num_bytes)

    serve(app, main)


async def upload(client: httpx.AsyncClient, size: tuple[int, int]) -> str:
    """Return the reference of an image of noise, which takes three bytes a pixel."""
    file = io.BytesIO()
    Image.frombytes("RGB", size, random.Random(size[0]).randbytes(3 * size[0] * size[1])).save(file, "PNG")
    answer = await client.post("/v1/uploads", content=file.getvalue(), headers={"Content-Type": "image/png"})
    return f"upload:{answer.json()['id']}"


@pytest.mark.parametrize("strategy", ["all_pairs", "circular"])
def test_nothing_is_left_of_a_group_whose_last_member_hangs_up(strategy: str) -> None:
    """The images of the group are held by the group, not by the request that completed it."""
    media, rules = HeldMedia(), GroupRules(strategy=strategy, group_size=2)
    app = app_of(first, rules=rules, media=media)
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

    rules, limits = GroupRules(group_size=3), Limits(key_comparisons=5)
    app = app_of(held, rules=rules, limits=limits)

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
