"""Which of the waiting jobs the engine is called with next, and which cannot be done in time."""

from __future__ import annotations

import math
from collections.abc import Hashable

from rewardlab.serving.batch_times import BatchTimes
from rewardlab.serving.fair_queue import Entry, FairQueue
from rewardlab.serving.jobs import Job, family_of
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.request_context import CHECKS

ACTIVE_S = 10.0  # for so long after its last job a tenant is thought to come again


class BatchPlanner:
    """Choose batches of at most ``max_sequences`` from what waits. With ``mix_seeds`` jobs of different seeds share one.

    A batch is as large as the shortest deadline among the waiting allows: half of that time, so that who comes while it runs
    is in time with the next one. While several tenants ask it takes at most twice as long as a single job does, unless that
    would halve the engine's rate. Long prompts have batches of their own, of fewer sequences. A job that cannot be done in
    time is not begun. The jobs of :data:`CHECKS` take the room that is left, and decide nothing of a batch's size.
    """

    def __init__(self, waiting: FairQueue, times: BatchTimes, *, max_sequences: int, mix_seeds: bool) -> None:
        self._waiting, self._times = waiting, times
        self._max_sequences, self._mix_seeds = max_sequences, mix_seeds
        self._last_asked: dict[str, float] = {}  # tenant -> when
        self._shortest_s, self._smallest = math.inf, max_sequences  # of what waits: seconds to its deadline, sequences

    def add(self, entry: Entry) -> None:
        """Put a job into the queue."""
        self._waiting.add(entry)
        if entry.tenant == CHECKS:
            return
        self._last_asked[entry.tenant] = entry.arrival
        self._shortest_s = min(self._shortest_s, entry.deadline - entry.arrival)
        self._smallest = min(self._smallest, entry.job.num_sequences)

    def choose(self, now: float, version: JudgeVersion) -> tuple[list[Entry], list[Entry]]:
        """Take the next batch for a judge, jobs of one kind, and what is too late for any; return both. No batch is of no
        kind."""
        batch: list[Entry] = []
        late: list[Entry] = []
        size, total, time_left = 0, 0, math.inf
        requests = [entry for entry in self._waiting if entry.tenant != CHECKS]
        self._shortest_s = min((entry.deadline - entry.arrival for entry in requests), default=math.inf)
        self._smallest = min((entry.job.num_sequences for entry in requests), default=self._max_sequences)
        for entry in self._waiting.in_turn(version):
            num = entry.job.num_sequences
            if not batch:
                size = self._size(entry.job, now)
            elif self._kind(entry) != self._kind(batch[0]) or total + num > size:
                continue
            if self._is_late(entry, size, now):
                self._waiting.remove(entry)
                late.append(entry)
            elif not batch or self._times.safe(family_of(entry.job), total + num) <= min(time_left, entry.deadline - now):
                self._waiting.take(entry)
                batch.append(entry)
                total, time_left = total + num, min(time_left, entry.deadline - now)
                if total >= size:
                    break
        return batch, late

    def seconds_until_done(self, entry: Entry, now: float, num_threads: int) -> float:
        """Return the seconds after the running calls within which a job that is not yet in the queue is done: the calls before
        it as they are on average, so many at a time, its own one safely."""
        family, num = family_of(entry.job), entry.job.num_sequences
        size = self._size(entry.job, now)
        ahead = self._waiting.sequences_before(entry.tenant, entry.rank, num)
        calls_before = int(ahead // size) * self._times.expected(family, size)
        return calls_before / num_threads + self._times.safe(family, max(num, min(size, self._waiting.sequences + num)))

    def _is_late(self, entry: Entry, size: int, now: float) -> bool:
        """Return whether a job cannot be done in time; where more waits than fits into a batch, in one of full size: a small
        one for who is nearly late would make the others late."""
        waiting, num = self._waiting.sequences, entry.job.num_sequences
        planned = max(num, size) if waiting > size else num
        return not entry.is_trial and self._times.safe(family_of(entry.job), planned) > entry.deadline - now

    def _size(self, job: Job, now: float) -> int:
        """Return the sequences that a batch of such jobs may have now, one job at least."""
        family, most = family_of(job), max(1, self._max_sequences >> job.length_class)
        size = self._times.size_within(family, self._shortest_s / 2, most)
        asking = {tenant for tenant, then in self._last_asked.items() if now - then < ACTIVE_S}
        if len(asking | self._waiting.tenants) > 1:
            size = min(size, self._times.lasting_twice(family, self._smallest, most))
        return max(size, self._times.efficient_size(family, most), job.num_sequences)

    def _kind(self, entry: Entry) -> Hashable:
        """Return what jobs of one batch have in common."""
        return (entry.job.kind, None if self._mix_seeds else entry.job.seed)
