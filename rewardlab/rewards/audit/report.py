"""The report of an audit: what every reward value looks like, and what each probe earned."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class WorstCase:
    """The text that was farthest outside what a probe may earn, or else the one with the highest reward."""

    text: str
    question: str
    reward: float


@dataclass(frozen=True)
class ProbeResult:
    """One probe in one domain: what it may earn (``least`` to ``most``), the ``highest`` it got, and the worst case."""

    domain: str
    probe: str
    least: float
    most: float
    tried: int
    highest: float
    paid_wrongly: int
    statuses: dict[str, int]
    worst: WorstCase

    @property
    def passed(self) -> bool:
        """Return whether every text earned no more than ``most`` and no less than ``least``."""
        return not self.paid_wrongly


@dataclass(frozen=True)
class RowSample:
    """One row as the report lists it; ``recorded`` is the reward in the file, if any."""

    id: str
    question: str
    truth: str
    response: str
    extracted: str
    status: str
    reward: float
    recorded: float | None


@dataclass(frozen=True)
class RewardValue:
    """All rows that earned one reward (or one tenth), with samples of them."""

    reward: float
    num_rows: int
    statuses: dict[str, int]
    samples: list[RowSample]


@dataclass(frozen=True)
class DomainReport:
    """How many rows of a domain got which reward; ``differ`` are samples of those with another reward in the file."""

    num_rows: int
    mean: float
    exact_values: bool
    sources: dict[str, int]
    statuses: dict[str, int]
    num_recorded: int
    num_differ: int
    differ: list[RowSample]
    values: list[RewardValue]


@dataclass(frozen=True)
class AuditReport:
    """An audit: ``domains`` by name, ``probes``, and the domains that were not probed."""

    num_rows: int
    domains: dict[str, DomainReport]
    probes: list[ProbeResult]
    unprobed: list[str]
    seed: int
    commit: str
    versions: dict[str, str]

    @property
    def failed(self) -> int:
        """Return how many probes did not pass."""
        return sum(not probe.passed for probe in self.probes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``report.json`` holds."""
        probes = [{**asdict(probe), "held": probe.passed} for probe in self.probes]
        return {**asdict(self), "probes": probes, "failed": self.failed}
