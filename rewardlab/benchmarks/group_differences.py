"""Paired differences of two runs group by group: what a change of judge costs or gains in each; of attacks, by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.benchmarks.comparison import Run, against
from rewardlab.benchmarks.run_names import short_names
from rewardlab.data.attacks.families import Kind
from rewardlab.metrics.intervals import DifferenceEstimate
from rewardlab.reporting.tables import percent, signed

BY_FAMILY = "Paired differences by family of attacks: right judgments, in points"
# Held-out families together, with the sign of `good_unnamed` and `wrong_unnamed` turned: more is better.
TOGETHER = {
    "": "the good answer named over a degenerate one",
    "_against_wrong": "an honest wrong one named over a degenerate one",
}


def group_differences(base: Run, other: Run) -> dict[str, DifferenceEstimate]:
    """Return by group the difference other - base of accuracy, of runs that :func:`comparison.against` compares."""
    groups = list(dict.fromkeys(row.group for row in base.rows))
    return {group: _difference(base, other, [group]) for group in groups}


def _difference(base: Run, other: Run, groups: Sequence[str]) -> DifferenceEstimate:
    before, after = (replace(run, rows=[row for row in run.rows if row.group in groups]) for run in (base, other))
    change = against(before, after)
    return DifferenceEstimate(change.difference, change.interval)


def family_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per family) of runs under attack: the first run's share of right judgments, and what
    each other run has more; the held-out families of degenerate answers together come first. No rows of other runs, and none
    where one failed."""
    base, robustness = runs[0], runs[0].report.robustness
    if robustness is None or len(runs) < 2 or any(run.report.failure for run in runs):
        return [], []
    names = short_names([run.name for run in runs])
    sets: dict[str, list[str]] = {}
    present = {row.group for row in base.rows}
    for ending, words in TOGETHER.items():
        held_out = [
            name
            for name, family in robustness.families.items()
            if family.kind == Kind.DEGENERATE and not family.in_training and name in present
            if name.endswith("_against_wrong") == bool(ending)
        ]
        sets |= {f"held out: {words}": held_out} if held_out else {}
    sets |= {name.replace("_", " "): [name] for name in robustness.families if name in present}
    rows = [[words, _share(base, groups), *(_cell(base, run, groups) for run in runs[1:])] for words, groups in sets.items()]
    return ["family", names[0], *(f"{name} less {names[0]}" for name in names[1:])], rows


def _share(run: Run, groups: Sequence[str]) -> str:
    scores = [row.score for row in run.rows if row.group in groups]
    return percent(sum(scores) / len(scores))


def _cell(base: Run, other: Run, groups: Sequence[str]) -> str:
    change = _difference(base, other, groups)
    return f"{signed(change.difference)} [{', '.join(map(signed, change.interval))}]"
