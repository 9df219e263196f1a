"""One engine, many requests: what waits is judged in batches, as soon as the engine is free.

The queue is bounded and knows priorities and deadlines. A caller that disconnects, or waits too long, leaves it before the
engine is called. A batch that fails is tried again job by job, so that one bad request fails alone; an engine that fails or
hangs is an error for those that waited for it, never a verdict. Results are cached by the content of the job.
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
from rewardlab.serving.engine_thread import EngineThread
from rewardlab.serving.errors import DeadlineExceededError, EngineFailedError, OverloadedError
from rewardlab.serving.jobs import Job, JudgeEngine, is_refusal

# Counter -> what it counts.
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
class _Entry:
    rank: tuple[int, int]  # lower priority number first, then by arrival
    job: Job
    future: asyncio.Future[Any]

    def __lt__(self, other: _Entry) -> bool:
        return self.rank < other.rank


class JudgeQueue:
    """Run jobs on ``judge`` in a thread. Create the queue, ``start()`` it within a running loop, ``await stop()`` it.

    ``probability_judge`` runs the jobs by probability (default: the judge itself).
    ``num_threads`` batches run at a time: one for an engine that computes here, several for one that batches by itself. With
    ``mix_seeds`` jobs of different seeds share a batch, with the first one's seed: for an engine whose samples depend on the
    batch anyway.
    ``max_sequences`` bounds a batch (votes times orders over its pairs), ``max_waiting`` the queue, ``engine_timeout_s`` one
    call of the engine, ``cache_size`` the cached results; a failing engine is checked every ``recheck_s``. ``counts`` are
    totals, with the keys of :data:`COUNTS`.
    """

    def __init__(
        self,
        judge: JudgeEngine,
        *,
        probability_judge: Judge | None = None,
        max_sequences: int = 256,
        max_waiting: int = 1024,
        engine_timeout_s: float = 600.0,
        cache_size: int = 10_000,
        recheck_s: float = 5.0,
        num_threads: int = 1,
        mix_seeds: bool = False,
    ) -> None:
        self.judge, self.probability_judge = judge, probability_judge or judge
        self.max_sequences, self.max_waiting, self.engine_timeout_s = max_sequences, max_waiting, engine_timeout_s
        self.recheck_s = recheck_s
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()  # of votes
        self.failing = False  # whether the last call of the engine failed
        self.batch_seconds = 1.0  # moving average
        self.recent: deque[tuple[float, float, int]] = deque(maxlen=500)  # Unix time, milliseconds, pairs that waited
        self._entries: list[_Entry] = []
        self._arrivals = itertools.count()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._cache: OrderedDict[str, Any] = OrderedDict()
        self._cache_size = cache_size
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._num_threads = num_threads
        self._running: set[_Entry] = set()  # what the engine has started
        self._mix_seeds = mix_seeds

    @property
    def num_waiting(self) -> int:
        return len(self._entries)

    @property
    def ready(self) -> bool:
        """Whether a request is likely to be answered: not draining, not failing, room in the queue."""
        return not (self._draining or self.failing or len(self._entries) >= self.max_waiting)

    def start(self) -> None:
        self._idle.set()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work()) for _ in range(self._num_threads)] + [loop.create_task(self._watch())]

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
        for entry in [*self._entries, *self._running]:
            _fail(entry, EngineFailedError("the server is shutting down"))
        self._entries.clear()

    async def submit(self, job: Job, *, priority: int = 0, timeout_s: float = 120.0) -> Any:
        """Return the result, from the cache or the engine. Raises OverloadedError, DeadlineExceededError, EngineFailedError, or
        the InputError with which the judge refused the pair.

        Cancelling the caller takes the job out of the queue; one that the engine has started is finished, and cached.
        """
        self.counts["asked"] += 1
        start = time.monotonic()
        if (cache_hit := self._cache.get(key := job.key())) is not None:
            self._cache.move_to_end(key)
            self.counts["cached"] += 1
            return cache_hit
        if self._draining or len(self._entries) >= self.max_waiting:
            self.counts["refused"] += 1
            raise OverloadedError(self.retry_after_s())
        loop = asyncio.get_running_loop()
        entry = _Entry((priority, next(self._arrivals)), job, loop.create_future())
        heapq.heappush(self._entries, entry)
        self._idle.clear()
        self._wake.set()
        deadline = loop.call_later(timeout_s, self._expire, entry)
        try:
            result = await entry.future
            self.recent.append((time.time(), 1000 * (time.monotonic() - start), len(self._entries)))
            return result
        except asyncio.CancelledError:
            self.counts["gone"] += 1
            entry.future.cancel()
            self._remove(entry)
            raise
        finally:
            deadline.cancel()

    def _remove(self, entry: _Entry) -> bool:
        """Take a job out of the queue; return whether it was still there."""
        others = [other for other in self._entries if other is not entry]
        was_waiting = len(others) < len(self._entries)
        if was_waiting:
            heapq.heapify(others)
            self._entries = others
        return was_waiting

    def _expire(self, entry: _Entry) -> None:
        """The deadline has come: a job that the engine has started is waited for."""
        if self._remove(entry):
            self.counts["late"] += 1
            _fail(entry, DeadlineExceededError("the deadline passed before the judge was free"))

    def retry_after_s(self) -> int:
        """Return whole seconds until the queue as it is now is likely to be done."""
        sequences = sum(entry.job.num_sequences for entry in self._entries)
        return max(1, round(self.batch_seconds * (1 + sequences / self.max_sequences)))

    async def _work(self) -> None:
        """Run batches of what waits on an engine thread, again and again."""
        thread = EngineThread()
        while True:
            batch = self._take()
            if not batch:
                if not self._running:
                    self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            self._running.update(batch)
            start = time.monotonic()
            self.counts["batches"] += 1
            self.counts["sequences"] += sum(entry.job.num_sequences for entry in batch)
            try:
                async with asyncio.timeout(self.engine_timeout_s):
                    results = await thread.run(partial(self._run, [entry.job for entry in batch]))
                self.batch_seconds = 0.7 * self.batch_seconds + 0.3 * (time.monotonic() - start)
                for entry, result in zip(batch, results, strict=True):
                    self._settle(entry, result)
                self.failing = all(_engine_failed(entry.job, result) for entry, result in zip(batch, results, strict=True))
            except TimeoutError:
                # The thread cannot be stopped: it is left behind, and another one calls the engine from now on.
                thread.close()
                thread = EngineThread()
                self._fail_batch(batch, f"the engine gave no answer within {self.engine_timeout_s:g} s")
            except Exception as error:  # a result that is none: the thread goes on, and nobody waits for ever
                self._fail_batch(batch, f"the engine's answer cannot be read ({error!r})")
            finally:
                self._running.difference_update(batch)

    def _kind(self, job: Job) -> Hashable:
        """Return what jobs of one batch have in common."""
        return (job.kind, None if self._mix_seeds else job.seed)

    async def _watch(self) -> None:
        """Check a failing engine even where no request comes, as behind a balancer that heeds /ready."""
        while True:
            await asyncio.sleep(self.recheck_s)
            if self.failing:
                with contextlib.suppress(Exception):  # it may be down in any way; then it stays failing
                    await asyncio.get_running_loop().run_in_executor(None, self.judge.check)
                    self.failing = False

    def _take(self) -> list[_Entry]:
        """Take the first in the queue and those behind it that fit into the same call, up to a batch."""
        batch: list[_Entry] = []
        others: list[_Entry] = []
        room = self.max_sequences
        while self._entries:
            entry = heapq.heappop(self._entries)
            if entry.future.done():  # its caller is gone
                continue
            if batch and (entry.job.num_sequences > room or self._kind(entry.job) != self._kind(batch[0].job)):
                others.append(entry)
                if room < 2 or len(others) > 256:
                    break
            else:
                batch.append(entry)
                room -= entry.job.num_sequences
                if room <= 0:
                    break
        for entry in others:
            heapq.heappush(self._entries, entry)
        return batch

    def _run(self, jobs: Sequence[Job]) -> list[Any]:
        """Return results or exceptions, from the engine's thread. A call that fails is tried again job by job."""
        try:
            return jobs[0].run(jobs, self.judge, self.probability_judge)
        except Exception as error:  # the boundary: an engine may fail in any way, and each request gets the error
            if len(jobs) == 1:
                return [error]
        results: list[Any] = []
        for job in jobs:
            try:
                results += job.run([job], self.judge, self.probability_judge)
            except Exception as error:
                results.append(error)
        return results

    def _settle(self, entry: _Entry, result: Any) -> None:
        if isinstance(result, Exception):
            self.counts["failed"] += 1
            _fail(entry, result if isinstance(result, InputError) else EngineFailedError(f"{type(result).__name__}: {result}"))
            return
        self.counts["judged"] += 1
        self.statuses.update(entry.job.statuses(result))
        errors = entry.job.errors(result)
        if not errors:
            self._cache[entry.job.key()] = result
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        if entry.future.done():
            return
        if entry.job.is_lost(result) and is_refusal(errors):
            entry.future.set_exception(DataError(f"the engine refuses the request: {errors[0]}"))
        elif entry.job.is_lost(result):
            entry.future.set_exception(EngineFailedError(f"the engine failed: {errors[0] or 'no answer'}"))
        else:
            entry.future.set_result(result)

    def _fail_batch(self, batch: Sequence[_Entry], message: str) -> None:
        self.failing = True
        self.counts["failed"] += len(batch)
        for entry in batch:
            _fail(entry, EngineFailedError(message))


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.future.done():
        entry.future.set_exception(error)


def _engine_failed(job: Job, result: Any) -> bool:
    """Return whether the engine is at fault; an error in the request itself does not count."""
    if isinstance(result, Exception):
        return not isinstance(result, InputError)
    return job.is_lost(result) and not is_refusal(job.errors(result))
