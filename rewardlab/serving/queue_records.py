"""What is counted of a queue, in all and of each tenant."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

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


@dataclass
class TenantRecord:
    """What a tenant sees of the queue: totals with the keys of :data:`COUNTS`, and its last latencies as (Unix time,
    milliseconds, own jobs that waited then)."""

    counts: Counter[str] = field(default_factory=Counter)
    recent: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=500))
