"""One engine, many requests: what waits is judged in batches, as soon as the engine is free.

The queue is bounded, shared fairly between tenants, and knows priorities and deadlines. A caller that disconnects leaves it
before the engine is called, and what cannot be done in time is not begun. A batch that fails is tried again in halves, so that
one bad request fails alone; an engine that fails or hangs is an error for those that waited for it, never a verdict. Results
are cached by tenant, judge and content of the job; what has no verdict is not, and is drawn by another seed the next time. The
judge may be replaced: a job is done by the one its request is bound to.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from rewardlab.errors import DataError, InputError
from rewardlab.judging.judge import Judge
from rewardlab.serving.auth import Keys
from rewardlab.serving.batch_call import BatchCall
from rewardlab.serving.batch_planner import BatchPlanner
from rewardlab.serving.batch_times import BatchTimes
from rewardlab.serving.engine_thread import EngineThread
from rewardlab.serving.errors import DeadlineExceededError, EngineFailedError, OverloadedError
from rewardlab.serving.fair_queue import Entry, FairQueue
from rewardlab.serving.histograms import ServingHistograms
from rewardlab.serving.jobs import Job, JudgeEngine, engine_failed, family_of, is_refusal
from rewardlab.serving.judge_versions import JudgeVersion, JudgeVersions
from rewardlab.serving.queue_records import ResultCache, TenantRecord
from rewardlab.serving.request_context import CHECKS, TENANT
from rewardlab.serving.request_log import record_job, record_weights

TIMEOUT_S = 120.0  # of a job without a deadline
PAUSE_S, PAUSE_SHARE = 0.1, 0.1  # between two batches of several tenants at most, and of the first one's time
TRIAL_S = 10.0  # so long after its last call an idle engine tries what seems too long for its deadline


class JudgeQueue:
    """Run jobs on ``judge`` in a thread. Create the queue, ``start()`` it within a running loop, ``await stop()`` it.

    ``probability_judge`` runs the jobs by probability (default: the judge itself); ``keys`` have weights, and limits that are
    charged with what is judged.
    ``num_threads`` batches run at a time: one for an engine that computes here, several for one that batches by itself. With
    ``mix_seeds`` jobs of different seeds share a batch, with the first one's seed: for an engine whose samples depend on the
    batch anyway.
    ``max_sequences`` bounds a batch (votes times orders over its pairs), ``max_waiting`` the queue, ``engine_timeout_s`` one
    call of the engine, ``cache_size`` the cached results; a failing engine is checked every ``recheck_s``. ``counts`` are
    totals, with the keys of :data:`rewardlab.serving.queue_records.COUNTS`, and ``tenants`` what there is of each.
    """

    def __init__(
        self,
        judge: JudgeEngine,
        *,
        probability_judge: Judge | None = None,
        keys: Keys | None = None,
        max_sequences: int = 256,
        max_waiting: int = 1024,
        engine_timeout_s: float = 600.0,
        cache_size: int = 10_000,
        recheck_s: float = 5.0,
        num_threads: int = 1,
        mix_seeds: bool = False,
        histograms: ServingHistograms | None = None,
    ) -> None:
        self.versions = JudgeVersions(JudgeVersion(judge, probability_judge), self._end_work)
        self.max_sequences, self.max_waiting, self.engine_timeout_s = max_sequences, max_waiting, engine_timeout_s
        self.recheck_s = recheck_s
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()  # of votes
        self.tenants: defaultdict[str, TenantRecord] = defaultdict(TenantRecord)
        self.failing = False  # whether the last call of the engine failed
        self.batch_seconds = 1.0  # moving average
        self._keys = keys or Keys()
        self._waiting, self._times = FairQueue(self._keys.weight), BatchTimes()
        self._planner = BatchPlanner(self._waiting, self._times, max_sequences=max_sequences, mix_seeds=mix_seeds)
        self._arrivals = itertools.count()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._room = asyncio.Event()  # set, and replaced, when jobs leave the queue
        self._cache = ResultCache(cache_size)
        self._stop_announced = self._stopping = False
        self._workers: dict[JudgeVersion, list[asyncio.Task[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._num_threads = num_threads
        self._running: set[Entry] = set()  # what the engine has started
        self._ends: list[tuple[JudgeVersion, float]] = []  # whose calls are expected to be done when
        self._last_call = float("-inf")
        self._histograms = histograms or ServingHistograms()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) - self._waiting.num_of(CHECKS)

    @property
    def ready(self) -> bool:
        """Whether a request is likely to be answered: no stop announced, not failing, room in the queue."""
        return not (self._stop_announced or self._stopping or self.failing or self.num_waiting >= self.max_waiting)

    def num_waiting_of(self, tenant: str) -> int:
        return self._waiting.num_of(tenant)

    def replace_judge(self, judge: JudgeEngine, probability_judge: Judge | None = None) -> None:
        """Let another judge answer the requests that come from now on; those that are here are finished by theirs. Within the
        loop that runs the queue."""
        self.replace_version(JudgeVersion(judge, probability_judge))

    def replace_version(self, version: JudgeVersion) -> None:
        """Do what :meth:`replace_judge` does."""
        self._begin_work(version)
        self.versions.replace(version)
        self.failing = False

    def start(self) -> None:
        self._idle.set()
        self._begin_work(self.versions.newest)
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def _begin_work(self, version: JudgeVersion) -> None:
        """Start threads for the engine of a judge: one that hangs does not hold up the judge that replaces it."""
        loop = asyncio.get_running_loop()
        self._workers[version] = [loop.create_task(self._work(version)) for _ in range(self._num_threads)]

    def _end_work(self, version: JudgeVersion) -> None:
        for task in self._workers.pop(version, []):
            task.cancel()

    def announce_stop(self) -> None:
        """Be ready no longer, so that a balancer sends requests elsewhere; those that come are still judged."""
        self._stop_announced = True

    async def stop(self, timeout_s: float) -> None:
        """Take nothing new, finish what waits, for at most so long; what is left then fails as EngineFailedError."""
        self._stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        for version in list(self._workers):
            self._end_work(version)
        if self._watcher:
            self._watcher.cancel()
        for entry in [*self._waiting, *self._running]:
            self._waiting.remove(entry)
            entry.fail(_stopping())
        self._idle.set()
        self._free_room()

    async def submit(self, job: Job, *, priority: int = 0, deadline: float | None = None, waits_for_room: bool = False) -> Any:
        """Return the result, from the cache or the engine, by ``deadline``, a time of the event loop. Of a tenant's jobs the
        lower ``priority`` goes first, then the earlier deadline. Where ``waits_for_room``
        a full queue is waited for until then: for the parts of a request that is let in. Raises OverloadedError,
        DeadlineExceededError, EngineFailedError, or the InputError with which the judge refused the pair.

        Cancelling the caller takes the job out of the queue; one that the engine has started is finished, and cached.
        """
        version = self.versions.current
        with self.versions.held(version):
            return await self._submit(job, version, priority, deadline, waits_for_room=waits_for_room)

    async def _submit(
        self, job: Job, version: JudgeVersion, priority: int, deadline: float | None, *, waits_for_room: bool
    ) -> Any:
        tenant, loop = TENANT.get(), asyncio.get_running_loop()
        self._count(tenant, "asked")
        arrival, key = loop.time(), job.key()
        name = None if key is None else f"{tenant}:{version.cache_name}:{key}"
        if name is not None and (cache_hit := self._cache.get(name)) is not None:
            self._count(tenant, "cached")
            record_weights(version.weights)
            return cache_hit
        if name is not None and (num_tries := self._cache.num_tries(name)):
            job = job.drawn_again(num_tries)
        deadline = arrival + TIMEOUT_S if deadline is None else deadline
        await self._enter(tenant, deadline if waits_for_room else None)
        rank = (priority, deadline, next(self._arrivals))
        entry = Entry(tenant, job, loop.create_future(), rank, arrival, deadline, version, name)
        self._refuse_late(entry)
        self._planner.add(entry)
        self._idle.clear()
        self._wake.set()
        timer = loop.call_at(deadline, self._expire, entry)
        try:
            result = await entry.future
            record_job(self._histograms, entry.taken - arrival, loop.time() - entry.taken, job.num_tokens(result))
            record_weights(version.weights)
            record = (time.time(), 1000 * (loop.time() - arrival), self._waiting.num_of(tenant))
            self.tenants[tenant].recent.append(record)
            return result
        except asyncio.CancelledError:
            self._count(tenant, "gone")
            entry.future.cancel()
            self._leave(entry)
            raise
        finally:
            timer.cancel()

    def _count(self, tenant: str, name: str, num: int = 1) -> None:
        self.counts[name] += num if tenant != CHECKS else 0
        self.tenants[tenant].counts[name] += num

    def check_room(self) -> None:
        """Raise OverloadedError if the queue has no room for a request, EngineFailedError if the server stops."""
        tenant = TENANT.get()
        if self._stopping:
            raise _stopping()
        if not self._has_room(tenant):
            self._count(tenant, "refused")
            raise OverloadedError(self.retry_after_s())

    def _has_room(self, tenant: str) -> bool:
        """Return whether a tenant may have one more job waiting. Where there are several keys it may have as many as there are
        places free: so one alone never has more than half of the queue, and N at work have 1/(N+1) each."""
        free = self.max_waiting - self.num_waiting
        return free > 0 and (len(self._keys) < 2 or self._waiting.num_of(tenant) < free)

    async def _enter(self, tenant: str, wait_until: float | None) -> None:
        """Return when there is room."""
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
        """Raise DeadlineExceededError for a job that cannot be done in time; an engine that was idle for long tries."""
        now = asyncio.get_running_loop().time()
        entry.is_trial = not (self._running or self._waiting) and now - self._last_call > TRIAL_S
        seconds = self._seconds_busy(now, entry.version) + self._planner.seconds_until_done(entry, now, self._num_threads)
        if not entry.is_trial and seconds > (left := entry.deadline - now):
            self._count(entry.tenant, "late")
            raise DeadlineExceededError(
                f"the judge would need {seconds:.1f} s and has {max(left, 0):.1f} s: give it more time, or come later"
            )

    def _seconds_busy(self, now: float, version: JudgeVersion) -> float:
        """Return the seconds until a thread of a judge is free."""
        ends = [end for of, end in self._ends if of is version]
        return max(0.0, min(ends) - now) if len(ends) >= self._num_threads else 0.0

    def _leave(self, entry: Entry) -> bool:
        """Take a job out of the queue; return whether it was still there."""
        was_waiting = self._waiting.remove(entry)
        self._free_room()
        return was_waiting

    def _expire(self, entry: Entry) -> None:
        """The deadline has come. What the engine has started is finished, for the cache."""
        if not entry.future.done():
            began = "was judged" if self._leave(entry) else "came to an end"
            self._count(entry.tenant, "late")
            entry.fail(DeadlineExceededError(f"the deadline passed before the request {began}"))

    def retry_after_s(self) -> int:
        """Return whole seconds until the queue as it is now is likely to be done."""
        return max(1, round(self.batch_seconds * (1 + self._waiting.sequences / self.max_sequences)))

    async def _work(self, version: JudgeVersion) -> None:
        """Run batches of what waits for a judge on an engine thread, again and again."""
        thread = EngineThread()
        try:
            while True:
                if batch := self._take(version):
                    thread = await self._run_batch(version, batch, thread)
                    del batch  # its pictures are not kept until the next one
                    continue
                if not self._running and not self._waiting:
                    self._idle.set()
                self._wake.clear()
                await self._wake.wait()
        finally:
            thread.close()

    async def _run_batch(self, version: JudgeVersion, batch: list[Entry], thread: EngineThread) -> EngineThread:
        """Run a batch on a thread; return the thread that goes on."""
        loop = asyncio.get_running_loop()
        start, end = loop.time(), (version, self._expected_end(batch))
        self._ends.append(end)
        call = BatchCall(version.judge, version.probability_judge or version.judge)
        try:
            async with asyncio.timeout(self.engine_timeout_s):
                results = await thread.run(partial(call.run, [entry.job for entry in batch]))
            self._learn(batch, results, loop.time() - start)
            for entry, result in zip(batch, results, strict=True):
                self._settle(entry, result)
            requests = [pair for pair in zip(batch, results, strict=True) if pair[0].tenant != CHECKS]
            if requests and version is self.versions.newest:
                self.failing = all(engine_failed(entry.job, result) for entry, result in requests)
            await self._await_next({entry.tenant for entry, _ in requests}, loop.time() - start)
        except TimeoutError:
            # A call cannot be stopped: its thread is left behind, and another one calls the engine from now on.
            thread.close()
            thread = EngineThread()
            self._fail_batch(batch, f"the engine gave no answer within {self.engine_timeout_s:g} s")
        except Exception as error:  # a result that is none: the thread goes on, and nobody waits for ever
            self._fail_batch(batch, f"the engine's answer cannot be read ({error!r})")
        finally:
            call.is_abandoned = True
            self._last_call = loop.time()
            self._histograms.add_batch(sum(entry.job.num_sequences for entry in batch), self._last_call - start)
            self._running.difference_update(batch)
            self._ends.remove(end)
        return thread

    async def _await_next(self, tenants: set[str], seconds: float) -> None:
        """Give a tenant that asks one thing after the other a moment for the next: it would wait for a batch of the others."""
        end = asyncio.get_running_loop().time() + min(PAUSE_S, PAUSE_SHARE * seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                while self._waiting and tenants - self._waiting.tenants:
                    self._wake.clear()
                    await self._wake.wait()

    def _take(self, version: JudgeVersion) -> list[Entry]:
        """Take the next batch for a judge out of the queue, and begin it; what would be late is told so."""
        now = asyncio.get_running_loop().time()
        batch, late = self._planner.choose(now, version)
        for entry in late:
            self._count(entry.tenant, "late")
            entry.fail(DeadlineExceededError("the engine became free too late to judge the request before its deadline"))
        if batch:
            self.counts["batches"] += any(entry.tenant != CHECKS for entry in batch)
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
        """Remember how long a good call took, and charge its tokens."""
        self.batch_seconds = 0.7 * self.batch_seconds + 0.3 * seconds
        good = [pair for pair in zip(batch, results, strict=True) if not isinstance(pair[1], Exception)]
        for entry, result in good:
            self._keys.charge(entry.tenant, tokens=entry.job.num_tokens(result))
        if len(good) == len(batch) and not all(entry.job.is_lost(result) for entry, result in good):
            self._times.record(family_of(batch[0].job), sum(entry.job.num_sequences for entry in batch), seconds)

    async def _watch(self) -> None:
        """Check a failing engine even where no request comes, as behind a balancer that heeds /ready."""
        while True:
            await asyncio.sleep(self.recheck_s)
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
        self.statuses.update(entry.job.statuses(result) if entry.tenant != CHECKS else ())
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
        self.failing |= batch[0].version is self.versions.newest and any(entry.tenant != CHECKS for entry in batch)
        for entry in batch:
            self._count(entry.tenant, "failed")
            entry.fail(self._failure(message))

    def _failure(self, message: str) -> EngineFailedError:
        """Return the error of a failing engine, which is looked at again every ``recheck_s``."""
        return EngineFailedError(message, max(1, math.ceil(self.recheck_s)))


def _stopping() -> EngineFailedError:
    return EngineFailedError("the server is shutting down; ask again, here when it is back or elsewhere")
