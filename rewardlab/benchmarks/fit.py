"""Is a data file that of the benchmark it is loaded as? Benchmarks share columns, and one loads as another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.registry import packaged_benchmarks
from rewardlab.errors import DataError


def check_fit(benchmark: Benchmark, rows: Sequence[Row], data: Path) -> None:
    """Raise DataError where the benchmark's groups are known and more than half of the rows are of none of them."""
    counts = Counter(row.group for row in rows)
    strangers = sum(number for group, number in counts.items() if group not in benchmark.sizes)
    if not benchmark.sizes or 2 * strangers <= len(rows):
        return
    like = [other.name for other in packaged_benchmarks() if other.sizes and sum(other.sizes.values()) == len(rows)]
    raise DataError(
        f"{data}: is not {benchmark.name}: {strangers:,} of {len(rows):,} rows are of none of its groups "
        f"({', '.join(benchmark.sizes)})" + (f"; it has as many rows as {like[0]}" if like else "")
    )
