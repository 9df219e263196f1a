"""An engine in the hands of a test, and a queue before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rewardlab.errors import EndpointError
from rewardlab.serving.auth import Keys
from rewardlab.serving.jobs import JudgeJob
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.schedule import QueueOptions
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.votes import judgment


class Engine:
    """Names the longer response; can be held, broken for one question, or failing. ``calls`` are the questions of each call."""

    name, sees = "engine", True

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.bad: set[str] = set()
        self.down = False
        self.refuses: Exception | None = None

    def check(self) -> None:
        if self.down:
            raise EndpointError("there is no engine")

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        self.calls.append([pair.question for pair in pairs])
        assert self.gate.wait(10)
        if self.refuses:
            raise self.refuses
        if self.down or self.bad & {pair.question for pair in pairs}:
            raise RuntimeError("out of memory")
        return [
            judgment(pair.pair_id, [vote(pair, o) for o in asked for _ in range(num_votes)])
            for pair, asked in zip(pairs, orders, strict=True)
        ]


def vote(pair: PreferencePair, order: Order) -> Vote:
    if pair.question == "lost":
        return Vote(order, Verdict(None, VerdictStatus.ERROR), Completion("", FinishReason.ERROR, error="HTTP 503"))
    if pair.question == "silent":
        return Vote(order, Verdict(None, VerdictStatus.ERROR), Completion("", FinishReason.ERROR, error=""))
    if pair.question == "too long":
        said = "HTTP 400: this model's maximum context length is 2048 tokens" + ("" if order is Order.GIVEN else ", again")
        return Vote(order, Verdict(None, VerdictStatus.ERROR), Completion("", FinishReason.ERROR, error=said))
    first, second = pair.shown(order)
    choice = Choice.FIRST if len(first) > len(second) else Choice.SECOND
    return Vote(order, Verdict(choice, VerdictStatus.OK), Completion("x", FinishReason.STOP, 1))


def judge_job(question: str, votes: int = 1) -> JudgeJob:
    return JudgeJob(PreferencePair("p", question, ("long answer", "short"), None), BOTH_ORDERS, votes, 0)


def run(
    body: Callable[[JudgeQueue, Engine], Awaitable[None]],
    *,
    probability_judge: Any = None,
    keys: Keys | None = None,
    **options: Any,
) -> Engine:
    engine = Engine()
    parts: dict[str, Any] = {"probability_judge": probability_judge, "keys": keys}

    async def main() -> None:
        queue = JudgeQueue(engine, QueueOptions(**options), **parts)
        queue.start()
        try:
            await body(queue, engine)
        finally:
            engine.gate.set()
            queue.stop()

    asyncio.run(asyncio.wait_for(main(), 30))
    return engine


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def settle() -> None:
    await asyncio.sleep(0.05)
