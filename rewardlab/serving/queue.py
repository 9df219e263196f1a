"""The queue of one engine: requests wait here and are judged in batches as soon as the engine is free.

The queue is bounded, fair between tenants, and knows priorities and deadlines. Jobs of a caller that disconnects leave it, and
jobs that would be late are not started. A batch that fails is retried in halves, so that one bad request fails alone; an engine
that fails or hangs is an error, never a verdict. Results are cached by tenant, judge and content; a job without a verdict is
sampled with another seed the next time. A job is judged by the version of the judge that its request is bound to.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rewardlab.errors import DataError, InputError
from rewardlab.judging.judge import Judge
from rewardlab.serving.auth import Keys
from rewardlab.serving.errors import DeadlineExceededError, EngineFailedError, OverloadedError
from rewardlab.serving.jobs import BatchCall, EngineThread, Job, JudgeEngine, engine_failed, family_of, is_refusal
from rewardlab.serving.judge_versions import JudgeVersion, JudgeVersions
from rewardlab.serving.request_record import ServingHistograms, current_request, record_job, tenant_of_request
from rewardlab.serving.schedule import BatchPlanner, BatchTimes, Entry, FairQueue, QueueOptions

COUNTS = {
    "asked": "requested comparisons",
    "cached": "answered from the cache",
    "judged": "judged by the engine",
    "failed": "failed in the engine",
    "late": "not judged by their deadline",
    "gone": "whose client disconnected",
    "refused": "refused because the queue was full",
    "batches": "calls of the engine",
    "sequences": "samples requested from the engine",
}


class ResultCache:
    """The most recently used ``size`` final results of jobs by name, and as many counts of tries without a final result."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[str, Any] = OrderedDict()
        self._num_tries: OrderedDict[str, int] = OrderedDict()

    def get(self, name: str) -> Any:
        if name in self._results:
            self._results.move_to_end(name)
        return self._results.get(name)

    def num_tries(self, name: str) -> int:
        """Return how often a job was sampled without a final result."""
        return self._num_tries.get(name, 0)

    def add(self, name: str, job: Job, result: Any) -> None:
        """Keep a final result; count another one, unless the engine failed."""
        if job.is_final(result):
            self._results[name] = result
            self._num_tries.pop(name, None)
        elif not job.is_lost(result):
            self._num_tries[name] = self._num_tries.pop(name, 0) + 1
        for kept in (self._results, self._num_tries):
            while len(kept) > self._size:
                kept.popitem(last=False)


@dataclass
class TenantRecord:
    """Totals of a tenant, with the keys of :data:`COUNTS`, and its last latencies."""

    counts: Counter[str] = field(default_factory=Counter)
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=500))


TIMEOUT_S = 120.0  # of a job without a deadline
PAUSE_S, PAUSE_SHARE = 0.1, 0.1  # longest pause between batches of several tenants: seconds, and fraction of the first batch
TRIAL_S = 10.0  # an engine idle for this long also tries jobs that seem too long for their deadlines


class JudgeQueue:
    """Run jobs on ``judge`` in a thread. Create the queue, ``start()`` it within a running loop, ``stop()`` it.

    ``probability_judge`` runs the jobs by probability (default: the judge itself). The weights of ``keys`` share the engine,
    and their limits are charged for what is judged. ``counts`` are totals, with the keys of :data:`COUNTS`; ``tenants`` has
    those of each tenant.
    """

    def __init__(
        self,
        judge: JudgeEngine,
        options: QueueOptions | None = None,
        *,
        probability_judge: Judge | None = None,
        keys: Keys | None = None,
        histograms: ServingHistograms | None = None,
    ) -> None:
        self.options = options or QueueOptions()
        self.versions = JudgeVersions(JudgeVersion(judge, probability_judge), self._end_work)
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()  # of votes
        self.tenants: defaultdict[str, TenantRecord] = defaultdict(TenantRecord)
        self.failing = False  # whether the last call of the engine failed
        self.batch_seconds = 1.0  # moving average
        self._keys = keys or Keys()
        self._waiting, self._times = FairQueue(self._keys.weight), BatchTimes()
        self._planner = BatchPlanner(self._waiting, self._times, self.options)
        self._arrivals = itertools.count()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()  # set, and replaced, when jobs leave the queue
        self._cache = ResultCache(self.options.cache_size)
        self._stop_announced = self._stopping = False
        self._workers: dict[JudgeVersion, list[asyncio.Task[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._running: set[Entry] = set()  # what the engine has started
        self._ends: list[tuple[JudgeVersion, float]] = []  # whose calls are expected to be done when
        self._last_call = float("-inf")
        self._histograms = histograms or ServingHistograms()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Return whether a request is likely to be answered: no stop announced, not failing, room in the queue."""
        return not (self._stop_announced or self._stopping or self.failing or self.num_waiting >= self.options.max_waiting)

    def num_waiting_of(self, tenant: str) -> int:
        return self._waiting.num_of(tenant)

    def replace_version(self, version: JudgeVersion) -> None:
        """Let another version of the judge answer requests from now on; earlier ones are finished by theirs. Call this within
        the loop of the queue."""
        self._begin_work(version)
        self.versions.replace(version)
        self.failing = False

    def start(self) -> None:
        self._begin_work(self.versions.newest)
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def _begin_work(self, version: JudgeVersion) -> None:
        """Start threads for the engine of a judge: one that hangs does not hold up the judge that replaces it."""
        loop = asyncio.get_running_loop()
        self._workers[version] = [loop.create_task(self._work(version)) for _ in range(self.options.num_threads)]

    def _end_work(self, version: JudgeVersion) -> None:
        for task in self._workers.pop(version, []):
            task.cancel()

    def announce_stop(self) -> None:
        """Report not ready, so that a balancer sends requests elsewhere; requests that come are still judged."""
        self._stop_announced = True

    def stop(self) -> None:
        """Accept no more jobs; those that are left fail with EngineFailedError."""
        self._stopping = True
        for version in list(self._workers):
            self._end_work(version)
        if self._watcher:
            self._watcher.cancel()
        for entry in [*self._waiting, *self._running]:
            self._waiting.remove(entry)
            entry.fail(_stopping())
        self._free_room()

    async def submit(self, job: Job, *, priority: int = 0, deadline: float | None = None, waits_for_room: bool = False) -> Any:
        """Return the result, from the cache or the engine, by ``deadline``, a time of the event loop. Jobs of a tenant go by
        lower ``priority``, then by earlier deadline. With ``waits_for_room`` a job waits until then for a full queue: it is
        part of an admitted request. Raise OverloadedError, DeadlineExceededError, EngineFailedError, or the InputError with
        which the judge refused the pair.

        Cancelling the caller removes the job from the queue; a job that the engine has started is finished and cached.
        """
        version = self.versions.current
        with self.versions.held(version):
            return await self._submit(job, version, priority, deadline, waits_for_room=waits_for_room)

    async def _submit(
        self, job: Job, version: JudgeVersion, priority: int, deadline: float | None, *, waits_for_room: bool
    ) -> Any:
        tenant, loop = tenant_of_request(), asyncio.get_running_loop()
        self._count(tenant, "asked")
        arrival, key = loop.time(), job.key()
        name = None if key is None else f"{tenant}:{version.cache_name}:{key}"
        if name is not None and (cache_hit := self._cache.get(name)) is not None:
            self._count(tenant, "cached")
            current_request().weights.add(version.weights)
            return cache_hit
        if name is not None and (num_tries := self._cache.num_tries(name)):
            job = job.drawn_again(num_tries)
        deadline = arrival + TIMEOUT_S if deadline is None else deadline
        await self._enter(tenant, deadline if waits_for_room else None)
        rank = (priority, deadline, next(self._arrivals))
        entry = Entry(tenant, job, loop.create_future(), rank, arrival, deadline, version, name)
        self._refuse_late(entry)
        self._planner.add(entry)
        self._wake.set()
        timer = loop.call_at(deadline, self._expire, entry)
        try:
            result = await entry.future
            record_job(self._histograms, entry.taken - arrival, loop.time() - entry.taken, job.num_tokens(result))
            current_request().weights.add(version.weights)
            self.tenants[tenant].latencies_ms.append(1000 * (loop.time() - arrival))
            return result
        except asyncio.CancelledError:
            self._count(tenant, "gone")
            entry.future.cancel()
            self._leave(entry)
            raise
        finally:
            timer.cancel()

    def _count(self, tenant: str, name: str, num: int = 1) -> None:
        self.counts[name] += num
        self.tenants[tenant].counts[name] += num

    def check_room(self) -> None:
        """Raise OverloadedError if the queue has no room for a request, EngineFailedError if the server stops."""
        tenant = tenant_of_request()
        if self._stopping:
            raise _stopping()
        if not self._has_room(tenant):
            self._count(tenant, "refused")
            raise OverloadedError(self.retry_after_s())

    def _has_room(self, tenant: str) -> bool:
        """Return whether a tenant may have one more job waiting. With several keys a tenant may have as many as there are free
        places: one alone never holds more than half of the queue, and N active tenants hold 1/(N+1) each."""
        free = self.options.max_waiting - self.num_waiting
        return free > 0 and (len(self._keys) < 2 or self._waiting.num_of(tenant) < free)

    async def _enter(self, tenant: str, wait_until: float | None) -> None:
        if wait_until is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(wait_until):
                    while not (self._stopping or self._has_room(tenant)):
                        await self._room.wait()
        self.check_room()

    def _free_room(self) -> None:
        self._room.set()
        self._room = asyncio.Event()

    def _refuse_late(self, entry: Entry) -> None:
        """Raise DeadlineExceededError for a job that cannot be done in time, unless the engine was idle for long."""
        now = asyncio.get_running_loop().time()
        entry.is_trial = not (self._running or self._waiting) and now - self._last_call > TRIAL_S
        seconds = self._seconds_busy(now, entry.version) + self._planner.seconds_until_done(
            entry, now, self.options.num_threads
        )
        if not entry.is_trial and seconds > (left := entry.deadline - now):
            self._count(entry.tenant, "late")
            raise DeadlineExceededError(
                f"the judge would need {seconds:.1f} s and has {max(left, 0):.1f} s: allow more time, or retry later"
            )

    def _seconds_busy(self, now: float, version: JudgeVersion) -> float:
        ends = [end for of, end in self._ends if of is version]
        return max(0.0, min(ends) - now) if len(ends) >= self.options.num_threads else 0.0

    def _leave(self, entry: Entry) -> bool:
        was_waiting = self._waiting.remove(entry)
        self._free_room()
        return was_waiting

    def _expire(self, entry: Entry) -> None:
        """Fail a job whose deadline has passed. The engine finishes what it has started, for the cache."""
        if not entry.future.done():
            began = "was judged" if self._leave(entry) else "came to an end"
            self._count(entry.tenant, "late")
            entry.fail(DeadlineExceededError(f"the deadline passed before the request {began}"))

    def retry_after_s(self) -> int:
        """Return the whole seconds in which the current queue is likely to be done."""
        return max(1, round(self.batch_seconds * (1 + self._waiting.sequences / self.options.max_sequences)))

    async def _work(self, version: JudgeVersion) -> None:
        """Run batches of the jobs of a version on an engine thread until cancelled."""
        thread = EngineThread()
        try:
            while True:
                if batch := self._take(version):
                    thread = await self._run_batch(version, batch, thread)
                    del batch  # its pictures are not kept until the next one
                    continue
                self._wake.clear()
                await self._wake.wait()
        finally:
            thread.close()

    async def _run_batch(self, version: JudgeVersion, batch: list[Entry], thread: EngineThread) -> EngineThread:
        """Run a batch on a thread; return the thread for the next batch."""
        loop = asyncio.get_running_loop()
        start, end = loop.time(), (version, self._expected_end(batch))
        self._ends.append(end)
        call = BatchCall(version.judge, version.probability_judge or version.judge)
        try:
            async with asyncio.timeout(self.options.engine_timeout_s):
                results = await thread.run(partial(call.run, [entry.job for entry in batch]))
            self._learn(batch, results, loop.time() - start)
            for entry, result in zip(batch, results, strict=True):
                self._settle(entry, result)
            if version is self.versions.newest:
                self.failing = all(engine_failed(entry.job, result) for entry, result in zip(batch, results, strict=True))
            await self._await_next({entry.tenant for entry in batch}, loop.time() - start)
        except TimeoutError:
            # A call cannot be stopped: its thread is abandoned, and a new one calls the engine.
            thread.close()
            thread = EngineThread()
            self._fail_batch(batch, f"the engine gave no answer within {self.options.engine_timeout_s:g} s")
        except Exception as error:  # a malformed result: the thread goes on, and nobody waits forever
            self._fail_batch(batch, f"the engine's answer cannot be read ({error!r})")
        finally:
            call.is_abandoned = True
            self._last_call = loop.time()
            self._histograms.add_batch(sum(entry.job.num_sequences for entry in batch), self._last_call - start)
            self._running.difference_update(batch)
            self._ends.remove(end)
        return thread

    async def _await_next(self, tenants: set[str], seconds: float) -> None:
        """Wait up to 100 ms for the next request of a tenant that sends them one by one, so that it need not wait for a whole
        batch of other tenants."""
        end = asyncio.get_running_loop().time() + min(PAUSE_S, PAUSE_SHARE * seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                while self._waiting and tenants - self._waiting.tenants:
                    self._wake.clear()
                    await self._wake.wait()

    def _take(self, version: JudgeVersion) -> list[Entry]:
        """Take the next batch for a version out of the queue, and start it; fail jobs that would be late."""
        now = asyncio.get_running_loop().time()
        batch, late = self._planner.choose(now, version)
        for entry in late:
            self._count(entry.tenant, "late")
            entry.fail(DeadlineExceededError("the engine became free too late to judge the request before its deadline"))
        if batch:
            self.counts["batches"] += 1
            for tenant in {entry.tenant for entry in batch}:
                self.tenants[tenant].counts["batches"] += 1
            self._running.update(batch)
            for entry in batch:
                entry.taken = now
                self._count(entry.tenant, "sequences", entry.job.num_sequences)
                self._keys.charge(entry.tenant, samples=entry.job.num_sequences)
        if batch or late:
            self._free_room()
        return batch

    def _expected_end(self, batch: Sequence[Entry]) -> float:
        total = sum(entry.job.num_sequences for entry in batch)
        return asyncio.get_running_loop().time() + self._times.expected(family_of(batch[0].job), total)

    def _learn(self, batch: Sequence[Entry], results: Sequence[Any], seconds: float) -> None:
        self.batch_seconds = 0.7 * self.batch_seconds + 0.3 * seconds
        good = [pair for pair in zip(batch, results, strict=True) if not isinstance(pair[1], Exception)]
        for entry, result in good:
            self._keys.charge(entry.tenant, tokens=entry.job.num_tokens(result))
        if len(good) == len(batch) and not all(entry.job.is_lost(result) for entry, result in good):
            self._times.record(family_of(batch[0].job), sum(entry.job.num_sequences for entry in batch), seconds)

    async def _watch(self) -> None:
        """Check a failing engine even if no request comes, as behind a balancer that follows /ready."""
        while True:
            await asyncio.sleep(self.options.recheck_s)
            if self.failing:
                with contextlib.suppress(Exception):  # it may be down in any way; then it stays failing
                    await asyncio.get_running_loop().run_in_executor(None, self.versions.newest.judge.check)
                    self.failing = False

    def _settle(self, entry: Entry, result: Any) -> None:
        if isinstance(result, Exception):
            self._count(entry.tenant, "failed")
            entry.fail(result if isinstance(result, InputError) else self._failure(f"{type(result).__name__}: {result}"))
            return
        self._count(entry.tenant, "judged")
        self.statuses.update(entry.job.statuses(result))
        errors = entry.job.errors(result)
        if entry.cache_name is not None:
            self._cache.add(entry.cache_name, entry.job, result)
        if entry.future.done():
            return
        if entry.job.is_lost(result) and is_refusal(errors):
            entry.fail(DataError(f"the engine refuses the request: {errors[0]}"))
        elif entry.job.is_lost(result):
            entry.fail(self._failure(f"the engine failed: {errors[0] or 'no answer'}"))
        else:
            entry.future.set_result(result)

    def _fail_batch(self, batch: Sequence[Entry], message: str) -> None:
        self.failing |= batch[0].version is self.versions.newest
        for entry in batch:
            self._count(entry.tenant, "failed")
            entry.fail(self._failure(message))

    def _failure(self, message: str) -> EngineFailedError:
        """Return the error of a failing engine, which is checked every ``recheck_s``."""
        return EngineFailedError(message, max(1, math.ceil(self.options.recheck_s)))


def _stopping() -> EngineFailedError:
    return EngineFailedError("the server is shutting down; send the request again later or elsewhere")
