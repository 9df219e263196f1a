"""Is a data file that of the benchmark it is loaded as? Benchmarks share columns: one loads as another, or half of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.registry import packaged_benchmarks
from rewardlab.data.row_files import lines_of
from rewardlab.errors import DataError

NUM_ROWS = 200  # that are looked at


def refuse_other_benchmark(benchmark: Benchmark, data: Path) -> None:
    """Raise DataError, by the right name, for JSON lines whose rows are more often another benchmark's than this one's."""
    if data.suffix != ".jsonl" or not data.is_file():
        return
    rows = [row for _, row in islice(lines_of(data), NUM_ROWS) if isinstance(row, Mapping)]
    counts = {other.name: sum(map(other.is_row, rows)) for other in packaged_benchmarks() if other.is_row}
    name = max(counts, key=lambda one: counts[one])
    if name != benchmark.name and 2 * counts[name] > len(rows) and counts[name] > counts.get(benchmark.name, 0):
        raise DataError(
            f"{data}: is not {benchmark.name}: {counts[name]:,} of its first {len(rows):,} rows are of {name}; "
            f"`rewardlab bench run {name} --data {data}` judges them"
        )


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
