"""An event loop whose clock jumps to the next timer, and an engine that takes so long by that clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from rewardlab.serving.jobs import JudgeJob
from rewardlab.types import BOTH_ORDERS, Choice, Completion, FinishReason, Judgment, Order, PreferencePair, Verdict, Vote
from rewardlab.types import VerdictStatus as Status
from rewardlab.verdicts.votes import judgment

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Minutes of waiting pass in no time; nothing outside the loop may be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            times = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            self._now = max(self._now, min(times, default=self._now))
        super()._run_once()  # type: ignore[misc]


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Return what ``main`` returns, run by a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def job(question: str, votes: int = 4) -> JudgeJob:
    return JudgeJob(PreferencePair("p", question, ("long answer", "short"), None), BOTH_ORDERS, votes, 0)


class TimedEngine:
    """A judge that prefers the first, and a thread in which ``seconds(sequences)`` pass for each call.

    ``calls`` are the questions of each call. Put ``thread`` in place of the queue's own.
    """

    name, sees = "timed", True

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.calls: list[list[str]] = []

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        first = Verdict(Choice.FIRST, Status.OK)
        return [
            judgment(
                pair.pair_id, [Vote(o, first, Completion("x", FinishReason.STOP, 1)) for o in asked for _ in range(num_votes)]
            )
            for pair, asked in zip(pairs, orders, strict=True)
        ]

    def thread(self) -> TimedThread:
        return TimedThread(self)


class TimedThread:
    def __init__(self, engine: TimedEngine) -> None:
        self._engine = engine

    def run(self, call: partial[Any]) -> asyncio.Future[Any]:
        jobs = call.args[0]
        self._engine.calls.append([one.pair.question for one in jobs])
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        seconds = self._engine.seconds(sum(one.num_sequences for one in jobs))
        loop.call_later(seconds, lambda: future.done() or future.set_result(call()))
        return future

    def close(self) -> None:
        pass
