"""What a benchmark is to the runner: rows, groups, and what is known of its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rewardlab.types import PreferencePair


@dataclass(frozen=True)
class Row:
    """One pair of a benchmark. ``row`` is its 0-based row in the data file: ids repeat in published files, rows do not.

    ``cluster`` names pairs that share a prompt, for the intervals; ``slices`` further ways to group it.
    """

    row: int
    pair: PreferencePair
    group: str
    cluster: str
    slices: Mapping[str, str]


class Benchmark(Protocol):
    """Loads its data file as published. ``sizes`` are the known rows per group (empty: not known)."""

    @property
    def name(self) -> str: ...

    @property
    def sizes(self) -> Mapping[str, int]: ...

    def load(self, data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
        """All rows. ``with_images`` False leaves the images out, for judges that do not look."""
        ...


def size_notes(benchmark: Benchmark, rows: list[Row]) -> list[str]:
    """One sentence for each group whose number of rows is not the published one."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.group] = counts.get(row.group, 0) + 1
    return [
        f"group {name!r} has {counts.get(name, 0)} rows, the published benchmark {size}"
        for name, size in benchmark.sizes.items()
        if counts.get(name, 0) != size
    ]
