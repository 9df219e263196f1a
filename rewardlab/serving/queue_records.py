"""What a queue remembers: results, how often a job was tried, and counts in all and of each tenant."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from rewardlab.serving.jobs import Job

# Counter -> what it counts.
COUNTS = {
    "asked": "pairs asked about",
    "cached": "answered from the cache",
    "judged": "judged by the engine",
    "failed": "that the engine failed to judge",
    "late": "that could not be judged before their deadline",
    "gone": "whose caller hung up",
    "refused": "refused because the queue was full",
    "batches": "calls of the engine",
    "sequences": "samples asked of the engine",
}


class ResultCache:
    """The final results of jobs by name, and of the others how often they were drawn: those that were used last, ``size`` of
    each at most."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[str, Any] = OrderedDict()
        self._num_tries: OrderedDict[str, int] = OrderedDict()

    def get(self, name: str) -> Any:
        """Return the result, or None."""
        if name in self._results:
            self._results.move_to_end(name)
        return self._results.get(name)

    def num_tries(self, name: str) -> int:
        """Return how many results of a job could not be kept: the next one is to be drawn by another seed."""
        return self._num_tries.get(name, 0)

    def add(self, name: str, job: Job, result: Any) -> None:
        """Keep a result that is final; count one that is not, unless the engine failed to give one."""
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
    """What a tenant sees of the queue: totals with the keys of :data:`COUNTS`, and its last latencies as (Unix time,
    milliseconds, own jobs that waited then)."""

    counts: Counter[str] = field(default_factory=Counter)
    recent: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=500))
