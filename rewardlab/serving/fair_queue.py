"""Jobs that wait for the engine: tenants take turns by weight, a tenant's own jobs go by priority and deadline."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rewardlab.serving.jobs import Job
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.request_context import CHECKS

MAX_SKIPPED = 64  # jobs of a tenant that do not fit into a batch, before the others are looked at


@dataclass(eq=False)
class Entry:
    """A job in the queue: ``rank`` is its place among those of its tenant, the lowest first. Times are the event loop's.
    ``version`` is the judge that does it, ``cache_name`` what its result is kept by; None where it is not."""

    tenant: str
    job: Job
    future: asyncio.Future[Any]
    rank: tuple[int, float, int]
    arrival: float
    deadline: float
    version: JudgeVersion
    cache_name: str | None = None
    taken: float = 0.0  # when the engine took it
    is_trial: bool = False  # begun though it seems too long: the engine is idle, and nothing recent is known of it

    def __lt__(self, other: Entry) -> bool:
        return self.rank < other.rank

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass
class _Line:
    """What a tenant has waiting, sorted, and the virtual time at which its turn begins."""

    start: float = 0.0
    entries: list[Entry] = field(default_factory=list)
    sequences: int = 0


class FairQueue:
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996) of sequences between tenants.

    The next job is the first of the tenant with the earliest start. When it is taken, its start becomes the virtual time, and
    the tenant's next start is later by the job's sequences over the tenant's weight. Who comes anew starts at the virtual time:
    idle time is not saved up. The jobs of :data:`CHECKS` have no turn: they come after all others.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._lines: dict[str, _Line] = {}
        self._virtual_time = 0.0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Entry]:
        return (entry for line in self._lines.values() for entry in line.entries)

    @property
    def sequences(self) -> int:
        """Those of requests: :data:`CHECKS` hold nobody up."""
        return sum(line.sequences for tenant, line in self._lines.items() if tenant != CHECKS)

    @property
    def tenants(self) -> set[str]:
        """Those of whom something waits, without :data:`CHECKS`."""
        return {tenant for tenant, line in self._lines.items() if line.entries and tenant != CHECKS}

    def num_of(self, tenant: str) -> int:
        """Return how many jobs of a tenant wait."""
        return len(self._lines[tenant].entries) if tenant in self._lines else 0

    def sequences_before(self, tenant: str, rank: tuple[int, float, int], num: int) -> float:
        """Return the sequences that are taken before a job of ``num`` sequences and this rank, if nobody else comes: those of
        the tenant that rank before it, and of each other tenant as many as its weight gives it meanwhile."""
        queued = self._lines.get(tenant, _Line())
        behind = queued.entries[bisect_left(queued.entries, rank, key=lambda entry: entry.rank) :]
        ahead = queued.sequences - sum(entry.job.num_sequences for entry in behind)
        share = math.inf if tenant == CHECKS else (ahead + num) / self._weight(tenant)
        others = ((name, line.sequences) for name, line in self._lines.items() if name not in (tenant, CHECKS))
        return ahead + sum(min(sequences, share * self._weight(name)) for name, sequences in others)

    def add(self, entry: Entry) -> None:
        line = self._lines.setdefault(entry.tenant, _Line())
        if not line.entries:
            line.start = max(line.start, self._virtual_time)
        insort(line.entries, entry)
        line.sequences += entry.job.num_sequences
        self._num += 1

    def remove(self, entry: Entry) -> bool:
        """Take a job out without its turn; return whether it was there."""
        line = self._lines.get(entry.tenant, _Line())
        at = bisect_left(line.entries, entry)
        if at == len(line.entries) or line.entries[at] is not entry:
            return False
        del line.entries[at]
        line.sequences -= entry.job.num_sequences
        self._num -= 1
        return True

    def take(self, entry: Entry) -> None:
        """Take a job out in its tenant's turn."""
        if self.remove(entry) and entry.tenant != CHECKS:
            line = self._lines[entry.tenant]
            self._virtual_time = max(self._virtual_time, line.start)
            line.start += entry.job.num_sequences / self._weight(entry.tenant)

    def in_turn(self, version: JudgeVersion) -> Iterator[Entry]:
        """Yield what waits for a version of the judge, in the order of turns. The reader takes or removes an entry, or leaves
        it; after so many left ones a tenant has no more."""
        lines = {tenant: [entry for entry in line.entries if entry.version is version] for tenant, line in self._lines.items()}
        left = {tenant: iter(entries) for tenant, entries in lines.items() if entries}
        skipped = dict.fromkeys(left, 0)
        while left:
            tenant = min(left, key=lambda name: (name == CHECKS, self._lines[name].start))
            entry = next(left[tenant], None)
            if entry is None or skipped[tenant] > MAX_SKIPPED:
                del left[tenant]
                continue
            num = self._num
            yield entry
            skipped[tenant] += num == self._num
