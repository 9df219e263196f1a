"""Paired differences of two runs group by group: what a change of judge costs or gains in each; of attacks, by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rewardlab.benchmarks.comparison import Run
from rewardlab.benchmarks.report_model import RowScore
from rewardlab.benchmarks.run_names import short_names
from rewardlab.data.attacks.families import Kind
from rewardlab.metrics.intervals import DifferenceEstimate, difference_interval
from rewardlab.reporting.tables import percent, signed

BY_FAMILY = "Paired differences by family of attacks: right judgments, in points"
# Held-out families together, with the sign of `good_unnamed` and `wrong_unnamed` turned: more is better.
TOGETHER = {
    "": "the good answer named over a degenerate one",
    "_against_wrong": "an honest wrong one named over a degenerate one",
}


def differences_by_group(base: Run, other: Run) -> dict[str, DifferenceEstimate]:
    """Return by group the difference other - base of accuracy, of runs that :func:`comparison.against` compares."""
    after = _scores(other)
    return {group: _difference(rows, after) for group, rows in _by_group(base).items()}


def _by_group(run: Run) -> dict[str, list[RowScore]]:
    groups: dict[str, list[RowScore]] = {}
    for row in run.rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def _scores(run: Run) -> dict[int, float]:
    return {row.row: row.score for row in run.rows}


def _difference(before: Sequence[RowScore], after: Mapping[int, float]) -> DifferenceEstimate:
    gaps = [after[row.row] - row.score for row in before]
    return DifferenceEstimate(sum(gaps) / len(gaps), difference_interval(gaps, [row.cluster for row in before]))


def family_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per family) of runs under attack: the first run's share of right judgments, and what
    each other run has more; the held-out families of degenerate answers together come first. No rows of other runs, and none
    where one failed."""
    base, robustness = runs[0], runs[0].report.robustness
    if robustness is None or len(runs) < 2 or any(run.report.failure for run in runs):
        return [], []
    names, groups = short_names([run.name for run in runs]), _by_group(base)
    families = {name: family for name, family in robustness.families.items() if name in groups}
    sets: dict[str, list[RowScore]] = {}
    for ending, words in TOGETHER.items():
        held_out = [name for name, each in families.items() if each.kind == Kind.DEGENERATE and not each.in_training]
        rows = [row for name in held_out if name.endswith("_against_wrong") == bool(ending) for row in groups[name]]
        sets |= {f"held out: {words}": rows} if rows else {}
    sets |= {name.replace("_", " "): groups[name] for name in families}
    others = [_scores(run) for run in runs[1:]]
    cells = [[words, _share(rows), *(_cell(rows, after) for after in others)] for words, rows in sets.items()]
    return ["family", names[0], *(f"{name} less {names[0]}" for name in names[1:])], cells


def _share(rows: Sequence[RowScore]) -> str:
    return percent(sum(row.score for row in rows) / len(rows))


def _cell(before: Sequence[RowScore], after: Mapping[int, float]) -> str:
    change = _difference(before, after)
    return f"{signed(change.difference)} [{', '.join(map(signed, change.interval))}]"
