"""One engine, many requests: what waits is judged together, as soon as the engine is free.

The queue is bounded and knows priorities and deadlines. Who hung up, or waited too long, leaves it unasked. A batch that breaks
is asked again one by one, so that one bad request fails alone; an engine that breaks or hangs is a failure of those that waited
for it, never a verdict. Answers are kept by the content of what was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rewardlab.errors import DataError, InputError
from rewardlab.judging.judge import Judge
from rewardlab.serving.engine_thread import Lane
from rewardlab.serving.errors import EngineFailedError, OverloadedError, TooLateError
from rewardlab.serving.jobs import Engine, Question, refused

# What is counted, and what of.
COUNTS = {
    "asked": "pairs asked about",
    "cached": "answered from the cache",
    "judged": "judged by the engine",
    "failed": "that the engine failed to judge",
    "late": "whose deadline passed in the queue",
    "gone": "whose caller hung up",
    "refused": "refused because the queue was full",
    "batches": "calls of the engine",
    "sequences": "samples asked of the engine",
}


@dataclass(eq=False)
class _Waiting:
    rank: tuple[int, int]  # lower priority number first, then by arrival
    ask: Question
    answer: asyncio.Future[Any]

    def __lt__(self, other: _Waiting) -> bool:
        return self.rank < other.rank


class Batcher:
    """Asks ``judge`` from one thread of its own. Create it, ``start()`` it within a running loop, ``await stop()`` it.

    ``weigher`` is asked where probabilities are wanted (default: the judge itself).
    ``lanes`` batches are asked at a time: one of an engine that computes here, several of one that batches by itself. With
    ``mixes_seeds`` questions of different seeds are asked together, with the first one's: of an engine whose draws depend on
    the batch anyway.
    ``max_sequences`` bounds a batch (votes times orders over its pairs), ``max_waiting`` the queue, ``engine_timeout_s`` one
    call of the engine, ``cache_size`` the answers kept; a failing engine is checked every ``recheck_s``. ``counts`` are totals,
    of :data:`COUNTS`.
    """

    def __init__(
        self,
        judge: Engine,
        *,
        weigher: Judge | None = None,
        max_sequences: int = 256,
        max_waiting: int = 1024,
        engine_timeout_s: float = 600.0,
        cache_size: int = 10_000,
        recheck_s: float = 5.0,
        lanes: int = 1,
        mixes_seeds: bool = False,
    ) -> None:
        self.judge, self.weigher = judge, weigher or judge
        self.max_sequences, self.max_waiting, self.engine_timeout_s = max_sequences, max_waiting, engine_timeout_s
        self.recheck_s = recheck_s
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()  # of votes
        self.failing = False  # whether the last call of the engine broke
        self.batch_seconds = 1.0  # moving average
        self.recent: deque[tuple[float, float, int]] = deque(maxlen=500)  # Unix time, milliseconds, pairs that waited
        self._queue: list[_Waiting] = []
        self._arrivals = itertools.count()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._cache: OrderedDict[str, Any] = OrderedDict()
        self._cache_size = cache_size
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._num_lanes = lanes
        self._asked: set[_Waiting] = set()  # what the engine has begun
        self._mixes_seeds = mixes_seeds

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def ready(self) -> bool:
        """Whether a request is likely to be answered: not draining, not failing, room in the queue."""
        return not (self._draining or self.failing or len(self._queue) >= self.max_waiting)

    def start(self) -> None:
        self._idle.set()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work()) for _ in range(self._num_lanes)] + [loop.create_task(self._watch())]

    async def stop(self, timeout_s: float = 60.0) -> None:
        """Take nothing new, finish what waits, for at most so long; what is left then fails as EngineFailedError."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        for task in self._tasks:
            task.cancel()
        for one in [*self._queue, *self._asked]:
            _fail(one, EngineFailedError("the server is shutting down"))
        self._queue.clear()

    async def ask(self, ask: Question, *, priority: int = 0, timeout_s: float = 120.0) -> Any:
        """The answer, from the cache or the engine. Raises OverloadedError, TooLateError, EngineFailedError, or the
        InputError with which the judge refused the pair.

        Cancelling the caller takes the question out of the queue; one that the engine has begun is finished, and kept.
        """
        self.counts["asked"] += 1
        begun = time.monotonic()
        if (found := self._cache.get(key := ask.key())) is not None:
            self._cache.move_to_end(key)
            self.counts["cached"] += 1
            return found
        if self._draining or len(self._queue) >= self.max_waiting:
            self.counts["refused"] += 1
            raise OverloadedError(self.retry_after_s())
        loop = asyncio.get_running_loop()
        waiting = _Waiting((priority, next(self._arrivals)), ask, loop.create_future())
        heapq.heappush(self._queue, waiting)
        self._idle.clear()
        self._wake.set()
        deadline = loop.call_later(timeout_s, self._expire, waiting)
        try:
            judged = await waiting.answer
            self.recent.append((time.time(), 1000 * (time.monotonic() - begun), len(self._queue)))
            return judged
        except asyncio.CancelledError:
            self.counts["gone"] += 1
            waiting.answer.cancel()
            self._leave(waiting)
            raise
        finally:
            deadline.cancel()

    def _leave(self, one: _Waiting) -> bool:
        """Take a question out of the queue; whether it was still there."""
        kept = [other for other in self._queue if other is not one]
        left = len(kept) < len(self._queue)
        if left:
            heapq.heapify(kept)
            self._queue = kept
        return left

    def _expire(self, one: _Waiting) -> None:
        """The deadline: what the engine has begun is waited for."""
        if self._leave(one):
            self.counts["late"] += 1
            _fail(one, TooLateError("the deadline passed before the judge was free"))

    def retry_after_s(self) -> int:
        """Whole seconds until the queue as it is now is likely to be done."""
        sequences = sum(one.ask.num_sequences for one in self._queue)
        return max(1, round(self.batch_seconds * (1 + sequences / self.max_sequences)))

    async def _work(self) -> None:
        """One lane: a thread that asks the engine about what waits, again and again."""
        lane = Lane()
        while True:
            batch = self._take()
            if not batch:
                if not self._asked:
                    self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            self._asked.update(batch)
            begun = time.monotonic()
            self.counts["batches"] += 1
            self.counts["sequences"] += sum(one.ask.num_sequences for one in batch)
            try:
                async with asyncio.timeout(self.engine_timeout_s):
                    judged = await lane.run(partial(self._judge, [one.ask for one in batch]))
                self.batch_seconds = 0.7 * self.batch_seconds + 0.3 * (time.monotonic() - begun)
                for one, result in zip(batch, judged, strict=True):
                    self._settle(one, result)
                self.failing = all(_broke(one.ask, result) for one, result in zip(batch, judged, strict=True))
            except TimeoutError:
                # The thread cannot be stopped: it is left behind, and another one asks from now on.
                lane.close()
                lane = Lane()
                self._failed(batch, f"the engine gave no answer within {self.engine_timeout_s:g} s")
            except Exception as error:  # an answer that is none: the lane goes on, and nobody waits for ever
                self._failed(batch, f"the engine's answer cannot be read ({error!r})")
            finally:
                self._asked.difference_update(batch)

    def _kind(self, ask: Question) -> Hashable:
        """Questions of one kind are asked together."""
        return (ask.kind, None if self._mixes_seeds else ask.seed)

    async def _watch(self) -> None:
        """A failing engine is looked after even where nobody asks, as behind a balancer that heeds /ready."""
        while True:
            await asyncio.sleep(self.recheck_s)
            if self.failing:
                with contextlib.suppress(Exception):  # it may be down in any way; then it stays failing
                    await asyncio.get_running_loop().run_in_executor(None, self.judge.check)
                    self.failing = False

    def _take(self) -> list[_Waiting]:
        """The first in the queue and those behind it that can be asked in the same call, up to a batch."""
        batch: list[_Waiting] = []
        kept: list[_Waiting] = []
        room = self.max_sequences
        while self._queue:
            one = heapq.heappop(self._queue)
            if one.answer.done():  # its caller is gone
                continue
            if batch and (one.ask.num_sequences > room or self._kind(one.ask) != self._kind(batch[0].ask)):
                kept.append(one)
                if room < 2 or len(kept) > 256:
                    break
            else:
                batch.append(one)
                room -= one.ask.num_sequences
                if room <= 0:
                    break
        for one in kept:
            heapq.heappush(self._queue, one)
        return batch

    def _judge(self, asks: Sequence[Question]) -> list[Any]:
        """In the engine's thread. A call that breaks is tried again one by one."""
        try:
            return asks[0].ask(asks, self.judge, self.weigher)
        except Exception as error:  # the boundary: an engine may break in any way, and each request must hear of it
            if len(asks) == 1:
                return [error]
        done: list[Any] = []
        for one in asks:
            try:
                done += one.ask([one], self.judge, self.weigher)
            except Exception as error:
                done.append(error)
        return done

    def _settle(self, one: _Waiting, result: Any) -> None:
        if isinstance(result, Exception):
            self.counts["failed"] += 1
            if not one.answer.done():
                told = result if isinstance(result, InputError) else EngineFailedError(f"{type(result).__name__}: {result}")
                one.answer.set_exception(told)
            return
        self.counts["judged"] += 1
        self.statuses.update(one.ask.statuses(result))
        lost = one.ask.lost(result)
        if not lost:
            self._cache[one.ask.key()] = result
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        if one.answer.done():
            return
        if one.ask.is_lost(result) and refused(lost):
            one.answer.set_exception(DataError(f"the engine refuses the request: {lost[0]}"))
        elif one.ask.is_lost(result):
            one.answer.set_exception(EngineFailedError(f"the engine failed: {lost[0] or 'no answer'}"))
        else:
            one.answer.set_result(result)

    def _failed(self, batch: Sequence[_Waiting], why: str) -> None:
        self.failing = True
        self.counts["failed"] += len(batch)
        for one in batch:
            _fail(one, EngineFailedError(why))


def _fail(one: _Waiting, error: Exception) -> None:
    if not one.answer.done():
        one.answer.set_exception(error)


def _broke(ask: Question, result: Any) -> bool:
    """Whether the engine failed. What a request itself got wrong says nothing of it."""
    if isinstance(result, Exception):
        return not isinstance(result, InputError)
    return ask.is_lost(result) and not refused(ask.lost(result))
