"""The benchmarks' own scorers: on a file of outputs, and on a run's votes in the form that a benchmark's inference writes.

A judge that was asked in the benchmark's own words is exported as it spoke. Another one's verdicts are translated into the
benchmark's form; a vote without a verdict becomes an empty text, which every official parser fails on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, OfficialScorer, Row
from rewardlab.benchmarks.data_files import json_rows, reason, rows_or_nulls, whole_json
from rewardlab.benchmarks.registry import PACKAGED, find_benchmark, packaged_benchmarks
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import Judgment


def write_official(
    benchmark: Benchmark, rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int, path: Path
) -> list[str]:
    """Leave a run in ``path`` as the benchmark's own inference would; returns what its scorer prints. [] where it has none.

    ``verdict_format`` is the judge's. Raise OutputError.
    """
    if benchmark.export is None:
        return []
    records = benchmark.export.records(rows, judgments, verdict_format, seed)
    lines = [json.dumps(record) for record in records] if isinstance(records, list) else [json.dumps(records)]
    write_atomic(path, "\n".join(lines) + "\n")
    return benchmark.export.lines(rows, records)


def official_scorers() -> dict[str, OfficialScorer]:
    """Return the scorers of the package's own benchmarks by name."""
    return {name: scorer for benchmark in packaged_benchmarks() for name, scorer in benchmark.scorers.items()}


def find_scorer(name: str) -> OfficialScorer:
    """Return the official scorer of a benchmark, or of a part of one. Raise ConfigError if there is none of this name."""
    scorers = official_scorers()
    if name not in scorers and name not in PACKAGED:
        scorers |= _others(name)
    if name not in scorers:
        raise ConfigError(f"no official scorer of {name!r} is included; expected {', '.join(scorers)}")
    return scorers[name]


def _others(name: str) -> dict[str, OfficialScorer]:
    """The scorer of a benchmark from outside, under the name or path it was given by."""
    try:
        benchmark = find_benchmark(name)
    except ConfigError:
        return {}
    return {name: benchmark.scorers[benchmark.name]} if benchmark.name in benchmark.scorers else {}


def official_lines(name: str, outputs: Path, data: Path | None = None) -> list[str]:
    """Return what a scorer prints on a file of outputs. Raise ConfigError if there is no such scorer, DataError if the file is
    of another shape."""
    scorer = find_scorer(name)
    if not outputs.is_file():
        raise DataError(f"{outputs}: no such file of outputs")
    try:
        if scorer.is_object:
            return scorer.lines(whole_json(outputs, scorer.inputs), data)
        rows = rows_or_nulls if scorer.skips_null else json_rows
        return scorer.lines([record for record, _ in rows(outputs, scorer.inputs)], data)
    except (DataError, ConfigError):
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        why = f"a row {reason(error)}" if isinstance(error, KeyError) else reason(error)
        raise DataError(f"{outputs}: not the outputs of {name} ({why}); expected {scorer.inputs}") from error
