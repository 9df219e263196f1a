"""One request to an endpoint: how long it may take, what is waited for, who is asked next, and what of the answer is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.chat_endpoint import ChatEndpoint, ask_any, completion_from
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.types import Completion, FinishReason, Message, Part
from tests.support.servers import running

PROMPT = (Message("user", (Part(text="?"),)),)
BODY = {"temperature": 0, "top_p": 1, "max_tokens": 1, "seed": 0}


def choice(text: str | None, index: int = 0, reason: str = "stop") -> dict[str, Any]:
    return {"index": index, "finish_reason": reason, "message": {"role": "assistant", "content": text}}


def answer(*choices: dict[str, Any], **more: Any) -> JSONResponse:
    return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": list(choices), **more})


def refusal(status: int, **headers: str) -> JSONResponse:
    return JSONResponse({"error": {"message": "no"}}, status, {name.replace("_", "-"): text for name, text in headers.items()})


class Server:
    """Takes ``seconds`` and gives its responses in turn, the last one ever after; keeps the times at which it was asked."""

    def __init__(self, *responses: JSONResponse, seconds: float = 0.0) -> None:
        self.responses, self.seconds, self.times = responses, seconds, list[float]()
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request: Request) -> JSONResponse:
        self.times.append(time.monotonic())
        await request.body()
        await asyncio.sleep(self.seconds)
        return self.responses[min(len(self.times), len(self.responses)) - 1]


def with_endpoints(
    servers: Sequence[Server], use: Callable[[list[ChatEndpoint]], Awaitable[list[Completion]]], **options: Any
) -> list[Completion]:
    """Return what ``use`` gets from an endpoint of each server."""

    async def run(urls: list[str]) -> list[Completion]:
        endpoints = [ChatEndpoint(f"{url}/v1", "m", **options) for url in urls]
        try:
            return await use(endpoints)
        finally:
            for endpoint in endpoints:
                await endpoint.aclose()

    with ExitStack() as stack:
        return asyncio.run(run([stack.enter_context(running(server.app)) for server in servers]))


def ask(server: Server, number: int = 1, **options: Any) -> list[Completion]:
    """Return the completions of ``number`` requests at once."""

    async def use(endpoints: list[ChatEndpoint]) -> list[Completion]:
        return list(
            await asyncio.gather(
                *(endpoints[0].complete(PROMPT, SamplingParams(temperature=0, max_tokens=1)) for _ in range(number))
            )
        )

    return with_endpoints([server], use, **options)


@pytest.mark.slow
def test_all_tries_together_end_by_the_deadline() -> None:
    """Each takes 0.3 s, and after the second another would begin beyond the deadline of 1 s."""
    server = Server(refusal(500), seconds=0.3)
    (failed,) = ask(server, deadline_s=1.0, retries=50)
    assert failed.failed
    assert 1 <= len(server.times) <= 2


@pytest.mark.slow
def test_waiting_for_a_place_is_not_on_the_request() -> None:
    """One at a time: the last of ten begins after its deadline would have passed, were it counted from the start."""
    answers = ask(Server(answer(choice("yes")), seconds=0.3), 10, concurrency=1, deadline_s=2.0, retries=0)
    assert [one.text for one in answers] == ["yes"] * 10


@pytest.mark.slow
def test_retry_after_is_waited_for() -> None:
    """Longer than our own back-off, which is at most 0.32 s here."""
    server = Server(refusal(429, Retry_After="0.8"), answer(choice("yes")))
    assert [one.text for one in ask(server)] == ["yes"]
    assert server.times[1] - server.times[0] >= 0.8


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    server, began = Server(refusal(429, Retry_After="60")), time.monotonic()
    (failed,) = ask(server, deadline_s=30.0)
    assert (failed.finish, failed.error[:8], len(server.times)) == (FinishReason.ERROR, "HTTP 429", 1)
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_an_endpoint_that_failed_is_left_alone() -> None:
    """The other one is asked until its rest is over; where both fail each is asked once."""
    bad, good, worse = Server(refusal(500)), Server(answer(choice("yes"))), Server(refusal(502))

    async def use(endpoints: list[ChatEndpoint]) -> list[Completion]:
        first, second, third = endpoints
        answers = [completion_from(await ask_any([first, second], PROMPT, BODY)) for _ in range(5)]
        assert (len(bad.times), len(good.times)) == (1, 5)
        first.rests_until = 0.0
        await ask_any([first, second], PROMPT, BODY)
        assert len(bad.times) == 2
        first.rests_until = 0.0
        return [*answers, completion_from(await ask_any([first, third], PROMPT, BODY))]

    *answers, last = with_endpoints([bad, good, worse], use, retries=0)
    assert [one.text for one in answers] == ["yes"] * 5
    assert (last.finish, last.error[:8]) == (FinishReason.ERROR, "HTTP 502")
    assert (len(bad.times), len(worse.times)) == (3, 1)


def test_choices_are_taken_by_their_index() -> None:
    """In whatever order a server lists them."""
    server = Server(answer(choice("b", 1), choice("c", 2), choice("a", 0)))
    with running(server.app) as url:
        (draws,) = OpenAISampler(f"{url}/v1", "m", many=True).sample([PROMPT], SamplingParams(num_samples=3))
    assert [one.text for one in draws] == ["a", "b", "c"]


def test_an_answer_that_was_filtered_is_billed() -> None:
    """It is a failure with the tokens that it cost."""
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
    (failed,) = ask(Server(answer(choice(None, reason="content_filter"), usage=usage)))
    assert (failed.finish, failed.num_tokens, failed.num_prompt_tokens) == (FinishReason.ERROR, 5, 30)
