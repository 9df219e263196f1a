"""The schedule of the engine: turns between tenants, call times learned from recent calls, and the choice of the next batch."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rewardlab.serving.jobs import Job, family_of
from rewardlab.serving.judge_versions import JudgeVersion

MAX_SKIPPED = 64  # jobs of a tenant that do not fit into a batch, before its other jobs are ignored


@dataclass(eq=False)
class Entry:
    """A job in the queue. Those of a tenant go by ``rank``, the lowest first. Times are the event loop's. ``version`` of the
    judge does the job; ``cache_name`` is the key of its result in the cache, None for a result that is not cached."""

    tenant: str
    job: Job
    future: asyncio.Future[Any]
    rank: tuple[int, float, int]
    arrival: float
    deadline: float
    version: JudgeVersion
    cache_name: str | None = None
    taken: float = 0.0  # when the engine took it
    is_trial: bool = False  # started though it seems too long: the engine was idle, so that its speed may have changed

    def __lt__(self, other: Entry) -> bool:
        return self.rank < other.rank

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass
class _TenantLine:
    """The sorted jobs of a tenant, and the virtual time at which its turn begins."""

    start: float = 0.0
    entries: list[Entry] = field(default_factory=list)
    sequences: int = 0


class FairQueue:
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996) of sequences between tenants.

    The next job is the first of the tenant with the earliest start. When it is taken, its start becomes the virtual time, and
    the tenant's next start is later by the job's sequences over the tenant's weight. A new tenant starts at the virtual time:
    idle time is not saved up.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._lines: dict[str, _TenantLine] = {}
        self._virtual_time = 0.0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Entry]:
        return (entry for line in self._lines.values() for entry in line.entries)

    @property
    def sequences(self) -> int:
        return sum(line.sequences for line in self._lines.values())

    @property
    def tenants(self) -> set[str]:
        """Return the tenants with waiting jobs."""
        return {tenant for tenant, line in self._lines.items() if line.entries}

    def num_of(self, tenant: str) -> int:
        return len(self._lines[tenant].entries) if tenant in self._lines else 0

    def sequences_before(self, tenant: str, rank: tuple[int, float, int], num: int) -> float:
        """Return the sequences taken before a job of ``num`` sequences and this rank if nobody else comes: those of the tenant
        that rank before it, and as many of each other tenant as its weight gives it meanwhile."""
        queued = self._lines.get(tenant, _TenantLine())
        behind = queued.entries[bisect_left(queued.entries, rank, key=lambda entry: entry.rank) :]
        ahead = queued.sequences - sum(entry.job.num_sequences for entry in behind)
        share = (ahead + num) / self._weight(tenant)
        others = ((name, line.sequences) for name, line in self._lines.items() if name != tenant)
        return ahead + sum(min(sequences, share * self._weight(name)) for name, sequences in others)

    def add(self, entry: Entry) -> None:
        line = self._lines.setdefault(entry.tenant, _TenantLine())
        if not line.entries:
            line.start = max(line.start, self._virtual_time)
        insort(line.entries, entry)
        line.sequences += entry.job.num_sequences
        self._num += 1

    def remove(self, entry: Entry) -> bool:
        """Remove a job without using its tenant's turn; return whether it was there."""
        line = self._lines.get(entry.tenant, _TenantLine())
        at = bisect_left(line.entries, entry)
        if at == len(line.entries) or line.entries[at] is not entry:
            return False
        del line.entries[at]
        line.sequences -= entry.job.num_sequences
        self._num -= 1
        return True

    def take(self, entry: Entry) -> None:
        if self.remove(entry):
            line = self._lines[entry.tenant]
            self._virtual_time = max(self._virtual_time, line.start)
            line.start += entry.job.num_sequences / self._weight(entry.tenant)

    def in_turn(self, version: JudgeVersion) -> Iterator[Entry]:
        """Yield the jobs of a version of the judge in the order of turns. The caller takes, removes or leaves each; a tenant's
        jobs end after :data:`MAX_SKIPPED` left ones."""
        lines = {tenant: [entry for entry in line.entries if entry.version is version] for tenant, line in self._lines.items()}
        left = {tenant: iter(entries) for tenant, entries in lines.items() if entries}
        skipped = dict.fromkeys(left, 0)
        while left:
            tenant = min(left, key=lambda name: self._lines[name].start)
            entry = next(left[tenant], None)
            if entry is None or skipped[tenant] > MAX_SKIPPED:
                del left[tenant]
                continue
            num = self._num
            yield entry
            skipped[tenant] += num == self._num


FORGETTING = 0.9  # factor on a call's weight for each later call
OUTDATED = 0.2  # the same after a call that took less than half of its expected time
PRIOR = 0.05  # weight of the prior, as a fraction of the squared mean size
OF_SEQUENCES = 0.75  # prior fraction of a call's time that grows with its sequences
NUM_RATIOS = 50  # recent calls that determine the safety margin
SAFE_SHARE = 0.9  # fraction of them within the prediction times the margin
MOST_MARGIN = 3.0


@dataclass
class _CallTimes:
    """Weighted sums of the sizes and seconds of calls, and the ratios of actual to predicted seconds."""

    weight: float = 0.0
    sizes: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RATIOS))

    def add(self, num: int, seconds: float, forgetting: float) -> None:
        self.weight = forgetting * self.weight + 1
        self.sizes = forgetting * self.sizes + num
        self.seconds = forgetting * self.seconds + seconds
        self.squares = forgetting * self.squares + num**2
        self.products = forgetting * self.products + num * seconds

    def fit(self) -> tuple[float, float]:
        """Return (seconds per call, seconds per sequence) by weighted least squares. If all calls had one size, the prior
        decides: its time per call is small, so that other sizes are tried."""
        size, seconds = self.sizes / self.weight, self.seconds / self.weight
        variance = self.squares / self.weight - size**2
        covariance = self.products / self.weight - size * seconds
        prior = PRIOR * size**2
        slope = (covariance + prior * OF_SEQUENCES * seconds / size) / (variance + prior)
        slope = min(max(slope, 0.0), seconds / size)
        return seconds - slope * size, slope


class BatchTimes:
    """Predicted seconds of a call by its number of sequences, for each family of jobs: a constant and a slope. An unknown
    family is predicted to take no time, so that it is tried."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _CallTimes] = {}

    def record(self, family: Hashable, num: int, seconds: float) -> None:
        """Learn from a call. A call that took less than half of its expected time makes earlier calls outdated."""
        line, expected = self._lines.setdefault(family, _CallTimes()), self.expected(family, num)
        if expected > 0:
            line.ratios.append(seconds / expected)
        line.add(num, seconds, FORGETTING if seconds > expected / 2 else OUTDATED)

    def expected(self, family: Hashable, num: float) -> float:
        line = self._lines.get(family)
        if line is None or not line.weight:
            return 0.0
        of_call, of_sequence = line.fit()
        return of_call + of_sequence * num

    def margin(self, family: Hashable) -> float:
        """Return the factor, in 1..3, by which nine of ten calls exceed their expected time at most."""
        line = self._lines.get(family)
        if line is None or not line.ratios:
            return 1.0
        ratios = sorted(line.ratios)
        return min(max(1.0, ratios[math.ceil(SAFE_SHARE * len(ratios)) - 1]), MOST_MARGIN)

    def safe(self, family: Hashable, num: float) -> float:
        """Return the seconds in which a call of ``num`` sequences is very likely done."""
        return self.margin(family) * self.expected(family, num)

    def size_within(self, family: Hashable, seconds: float, most: int) -> int:
        """Return how many sequences, 1..``most``, a call may have to be done safely within ``seconds``."""
        line = self._lines.get(family)
        if line is None or self.safe(family, most) <= seconds:
            return most
        of_call, of_sequence = line.fit()
        room = seconds / self.margin(family) - of_call
        return max(1, min(most, int(room / of_sequence))) if of_sequence > 0 and room > 0 else 1

    def lasting_twice(self, family: Hashable, num: int, most: int) -> int:
        """Return how many sequences, up to ``most``, take twice as long as ``num`` sequences."""
        line = self._lines.get(family)
        if line is None:
            return most
        of_call, of_sequence = line.fit()
        return min(most, 2 * num + int(of_call / of_sequence)) if of_sequence > 0 else most

    def efficient_size(self, family: Hashable, most: int) -> int:
        """Return how many sequences a call needs to reach half of the throughput of calls of ``most``."""
        line = self._lines.get(family)
        if line is None:
            return 1
        of_call, of_sequence = line.fit()
        rate = 0.5 * most / (of_call + of_sequence * most) if of_call + of_sequence * most > 0 else math.inf
        return max(1, min(most, math.ceil(of_call * rate / (1 - of_sequence * rate)))) if of_sequence * rate < 1 else most


@dataclass(frozen=True)
class QueueOptions:
    """``num_threads`` batches run at a time: one for an engine that computes here, several for one that batches by itself. With
    ``mix_seeds`` jobs of different seeds share a batch and its first seed: for an engine whose samples depend on the batch
    anyway. ``max_sequences`` bounds a batch (votes times orders, summed over its pairs); one of more than ``engine_batch``, if
    that is not 0, is a whole number of these, into which the engine cuts it itself. ``max_waiting`` bounds the queue,
    ``engine_timeout_s`` an engine call, ``cache_size`` the cached results; a failing engine is checked every ``recheck_s``.
    """

    max_sequences: int = 256
    engine_batch: int = 0
    max_waiting: int = 1024
    engine_timeout_s: float = 600.0
    cache_size: int = 10_000
    recheck_s: float = 5.0
    num_threads: int = 1
    mix_seeds: bool = False


ACTIVE_S = 10.0  # a tenant counts as active for this long after its last job


class BatchPlanner:
    """Choose batches from what waits, by the ``max_sequences``, ``engine_batch`` and ``mix_seeds`` of the options.

    A batch takes at most half of the shortest deadline among the waiting jobs, so that a job that comes meanwhile is in time
    with the next batch. While several tenants are active it takes at most twice as long as a single job, unless that would
    halve the throughput. Long prompts have batches of their own, of fewer sequences. A batch larger than the engine's own is a
    whole number of these: the rest would be cut off, a small batch in each call. A job that cannot be done in time is not
    started.
    """

    def __init__(self, waiting: FairQueue, times: BatchTimes, options: QueueOptions) -> None:
        self._waiting, self._times = waiting, times
        self._max_sequences, self._mix_seeds = options.max_sequences, options.mix_seeds
        self._engine_batch = options.engine_batch
        self._last_asked: dict[str, float] = {}  # tenant -> when
        self._shortest_s, self._smallest = math.inf, options.max_sequences  # of what waits: seconds to its deadline, sequences

    def add(self, entry: Entry) -> None:
        self._waiting.add(entry)
        self._last_asked[entry.tenant] = entry.arrival
        self._shortest_s = min(self._shortest_s, entry.deadline - entry.arrival)
        self._smallest = min(self._smallest, entry.job.num_sequences)

    def choose(self, now: float, version: JudgeVersion) -> tuple[list[Entry], list[Entry]]:
        """Take the next batch for a version, jobs of one kind, and the jobs that are too late for any batch; return both."""
        batch: list[Entry] = []
        late: list[Entry] = []
        size, total, time_left = 0, 0, math.inf
        self._shortest_s = min((entry.deadline - entry.arrival for entry in self._waiting), default=math.inf)
        self._smallest = min((entry.job.num_sequences for entry in self._waiting), default=self._max_sequences)
        by_kind = self._sequences_by_kind(version) if self._engine_batch else Counter()
        for entry in self._waiting.in_turn(version):
            num = entry.job.num_sequences
            if not batch:
                size = self._size(entry.job, now)
                if size > (whole := self._engine_batch >> entry.job.length_class) > 0:
                    num_waiting = by_kind[self._kind(entry)] // whole
                    size = whole * min(size // whole, max(1, num_waiting - 1))  # one is left for the next call
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
        """Return the seconds, after the running calls, in which a job that is not yet queued is done: the expected time of the
        calls before it, and the safe time of its own."""
        family, num = family_of(entry.job), entry.job.num_sequences
        size = self._size(entry.job, now)
        ahead = self._waiting.sequences_before(entry.tenant, entry.rank, num)
        calls_before = int(ahead // size) * self._times.expected(family, size)
        return calls_before / num_threads + self._times.safe(family, max(num, min(size, self._waiting.sequences + num)))

    def _is_late(self, entry: Entry, size: int, now: float) -> bool:
        """Return whether a job cannot be done in time. If more waits than fits into a batch, a batch of full size counts: a
        small one for a job that is nearly late would make the others late."""
        waiting, num = self._waiting.sequences, entry.job.num_sequences
        planned = max(num, size) if waiting > size else num
        return not entry.is_trial and self._times.safe(family_of(entry.job), planned) > entry.deadline - now

    def _size(self, job: Job, now: float) -> int:
        """Return the sequences that a batch of such jobs may have now: at least those of one job."""
        family, most = family_of(job), max(1, self._max_sequences >> job.length_class)
        size = self._times.size_within(family, self._shortest_s / 2, most)
        asking = {tenant for tenant, then in self._last_asked.items() if now - then < ACTIVE_S}
        if len(asking | self._waiting.tenants) > 1:
            size = min(size, self._times.lasting_twice(family, self._smallest, most))
        return max(size, self._times.efficient_size(family, most), job.num_sequences)

    def _sequences_by_kind(self, version: JudgeVersion) -> Counter[Hashable]:
        """Return the sequences that wait for a version of the judge, by the kind of jobs that can be in one batch."""
        numbers = Counter[Hashable]()
        for entry in self._waiting:
            if entry.version is version:
                numbers[self._kind(entry)] += entry.job.num_sequences
        return numbers

    def _kind(self, entry: Entry) -> Hashable:
        return (entry.job.kind, None if self._mix_seeds else entry.job.seed)
