"""How many requests an endpoint is sent, against a real server that refuses what is more than it likes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.chat_endpoint import ChatEndpoint
from rewardlab.samplers.concurrency import AdaptiveConcurrency, in_window, retry_after_s
from rewardlab.types import Message, Part
from tests.support.servers import running

PROMPT = (Message("user", (Part(text="?"),)),)


class Server:
    """Answers after 20 ms; says 429 to more than ``likes`` at a time, and to a ``share`` whatever the load."""

    def __init__(self, likes: int, share: float = 0.0) -> None:
        self.likes, self.share, self.inside, self.refused, self.most = likes, share, 0, 0, 0
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])
        self.dice = random.Random(0)

    async def chat(self, request: Request) -> JSONResponse:
        await request.body()
        if self.inside >= self.likes or self.dice.random() < self.share:
            self.refused += 1
            return JSONResponse({"error": {"message": "slow down"}}, 429, {"Retry-After": "0.05"})
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.02)
        self.inside -= 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})


def ask_many(server: Server, number: int, **options: Any) -> tuple[ChatEndpoint, list[str]]:
    async def ask(url: str) -> tuple[ChatEndpoint, list[str]]:
        endpoint = ChatEndpoint(f"{url}/v1", "m", concurrency=48, **options)
        try:
            asked = (endpoint.complete(PROMPT, SamplingParams(temperature=0, max_tokens=1)) for _ in range(number))
            return endpoint, [one.text or one.error for one in await asyncio.gather(*asked)]
        finally:
            await endpoint.aclose()

    with running(server.app) as url:
        return asyncio.run(ask(url))


def test_an_overloaded_server_is_sent_less() -> None:
    """The endpoint takes 8 at a time and is offered 48: the limit comes down to its like, and nothing is lost."""
    server = Server(likes=8)
    endpoint, answers = ask_many(server, 600, retries=50)
    assert answers == ["yes"] * 600
    assert endpoint.slots.limit < 20
    assert server.most == 8
    assert server.refused < 600  # a client that goes on with 48 is refused some 3,000 times
    assert endpoint.failures == {"HTTP 429": server.refused}


def test_a_few_refusals_do_not_slow_the_rest() -> None:
    """2 % of 429 at any load: still as many at a time as asked for."""
    server = Server(likes=1000, share=0.02)
    endpoint, answers = ask_many(server, 600, retries=8)
    assert answers == ["yes"] * 600
    assert endpoint.slots.limit == 48
    assert server.refused > 0


def test_one_who_stops_waiting_leaves_its_place() -> None:
    """Cancelled while waiting, or just as it is let in: no slot is lost."""

    async def hold(slots: AdaptiveConcurrency, gate: asyncio.Event) -> None:
        async with slots:
            await gate.wait()

    async def main() -> None:
        slots, gate = AdaptiveConcurrency(1), asyncio.Event()
        async with slots:
            waiting, next_in = (asyncio.create_task(hold(slots, gate)) for _ in range(2))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
        next_in.cancel()  # it was let in by our leaving, and has not run since
        await asyncio.gather(waiting, next_in, return_exceptions=True)
        assert slots.inside == 0
        gate.set()
        async with asyncio.timeout(1):
            await hold(slots, gate)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0), ("", 0), ("1.5", 1.5), ("-3", 0), ("soon", 0), (formatdate(0, usegmt=True), 0)]
)
def test_retry_after(header: str | None, seconds: float) -> None:
    """Seconds, or a date (RFC 9110, 10.2.3); nonsense is no wait."""
    assert retry_after_s(header) == seconds
    assert retry_after_s(formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("broken", [0, 5])
def test_what_is_at_work_outlives_an_item_that_cannot_be_taken(broken: int, width: int) -> None:
    """All before it are asked and yielded, then its error is raised; nothing after it is taken."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in range(20):
            taken.append(n)
            if n == broken:
                raise ValueError("bad item")
            yield n

    async def work(item: int) -> int:
        await asyncio.sleep(0.001 * (10 - item))
        return item

    got: list[int] = []

    async def main() -> None:
        async for batch in in_window(items(), work, width):
            got.extend(batch)

    with pytest.raises(ValueError, match="bad item"):
        asyncio.run(main())
    assert sorted(got) == list(range(broken))
    assert taken == list(range(broken + 1))
