"""Do the numbers of a published row add up? The overall figure must be the mean of the groups, weighted by their sizes.

A row that only adds up under another grouping than the benchmark's was computed by another scorer: its groups, and their
macro average, cannot be compared with those of other rows. The overall figure can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isfinite

from rewardlab.benchmarks.report_model import Report, RowScore, Scores
from rewardlab.errors import DataError

OFF = 0.25  # points: rounding, and what scorers that leave undecided items out of a group may add to it


@dataclass(frozen=True)
class GroupingFit:
    """A row under one grouping. ``overall`` is the groups' weighted mean (percent), ``off`` the reported one less that.

    ``counts`` are right items per group where every reported percentage is one to its digits; None where one is not.
    """

    grouping: str
    overall: float
    off: float
    counts: Mapping[str, int] | None

    @property
    def adds_up(self) -> bool:
        return abs(self.off) <= OFF


@dataclass(frozen=True)
class RunCheck:
    """A finished run: why it failed at its endpoint ("" if it did not), what of its numbers does not add up, and in a sentence
    what was ``counted``."""

    run: str
    is_good: bool
    failure: str
    problems: tuple[str, ...]
    counted: str = ""


@dataclass(frozen=True)
class Check:
    """What `bench check` finds: of finished ``runs``, or of a published row a ``sentence`` and its fit to each known grouping,
    the best first. ``is_good``: all runs are, or one of the groupings gives the overall figure."""

    is_good: bool
    runs: tuple[RunCheck, ...] = ()
    sentence: str = ""
    groupings: tuple[GroupingFit, ...] = ()


def digits_of(value: float) -> int:
    """Decimals that a number is written with."""
    return len(repr(float(value)).partition(".")[2].rstrip("0"))


def fits(groups: Mapping[str, float], overall: float, groupings: Mapping[str, Mapping[str, int]]) -> list[GroupingFit]:
    """A row's groups and overall (percent) under each known grouping (rows per group), the best first.

    Best is one whose counts are whole, then the nearest. Raises DataError where a group is not known or missing.
    """
    every = (*groups.values(), overall)
    if not all(isfinite(value) and 0 <= value <= 100 for value in every) or max(every) <= 1:
        raise DataError(f"{', '.join(f'{value:g}' for value in every)}: expected percentages, from 0 to 100")
    table = []
    for name, sizes in groupings.items():
        if set(sizes) != set(groups):
            raise DataError(f"groups {', '.join(groups)}: expected {', '.join(sizes)}")
        mean = sum(sizes[group] * share for group, share in groups.items()) / sum(sizes.values())
        table.append(GroupingFit(name, mean, overall - mean, _counts(groups, sizes)))
    return sorted(table, key=lambda fit: (fit.counts is None or not fit.adds_up, abs(fit.off)))


def _counts(groups: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Right items of each group, where a whole number of them gives the percentage to its digits."""
    digits = max(map(digits_of, groups.values()))
    if digits < 2:  # one decimal of some hundred rows fits too many counts to say anything
        return None
    counts = {name: round(share / 100 * sizes[name]) for name, share in groups.items()}
    exact = all(round(100 * counts[name] / sizes[name], digits) == share for name, share in groups.items())
    return counts if exact else None


def sentence(groups: Mapping[str, float], overall: float, groupings: Mapping[str, Mapping[str, int]], official: str) -> str:
    """What the arithmetic says of a row, for a person."""
    ranked = fits(groups, overall, groupings)
    best = ranked[0]
    if best.counts is None:  # nothing but nearness speaks for it, and similar groups are near under every grouping
        best = next((fit for fit in ranked if fit.grouping == official and fit.adds_up), best)
    if not best.adds_up:
        mean = sum(groups.values()) / len(groups)
        if abs(mean - overall) <= 0.02:
            return f"the overall accuracy is the plain mean of the groups ({mean:.2f}), their macro average: not of all items"
        return (
            f"no known grouping: the nearest ({best.grouping}) gives {best.overall:.2f}, {best.off:+.2f} points from the "
            f"reported {overall:g}; groups and overall cannot both be right"
        )
    text = f"adds up under {best.grouping} ({'/'.join(map(str, groupings[best.grouping].values()))}): {best.overall:.2f}"
    if best.counts:
        shares = (f"{n}/{groupings[best.grouping][name]}" for name, n in best.counts.items())
        text += f", exactly {', '.join(shares)} = {sum(best.counts.values())}/{sum(groupings[best.grouping].values())}"
    if best.grouping == official:
        return text
    return text + "; groups and macro average are not comparable with the official ones; the overall accuracy is"


def problems(report: Report, rows: Sequence[RowScore]) -> list[str]:
    """Return one sentence for each thing that does not add up in a run's report, given its ``scores.jsonl``; [] if all does.

    Everything is summed anew from the scores of single rows: the groups from their rows, the overall from the groups.
    """
    scores, sentences = report.scores, list[str]()
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.score)
    if groups.keys() != scores.groups.keys():
        sentences.append(
            f"the rows are of groups {', '.join(sorted(groups))}, the report of {', '.join(sorted(scores.groups))}"
        )
    for name, values in groups.items():
        if (cell := scores.groups.get(name)) is None:
            continue
        mean = sum(values) / len(values)
        if cell.n != len(values):
            sentences.append(f"group {name} has {cell.n} pairs in the report, {len(values)} rows")
        if not isclose(cell.accuracy, mean, abs_tol=1e-9):
            sentences.append(f"group {name} has {100 * cell.accuracy:.2f} % in the report, its rows give {100 * mean:.2f} %")
    weighted = sum(cell.n * cell.accuracy for cell in scores.groups.values()) / max(1, len(rows))
    if not isclose(scores.accuracy.micro, weighted, abs_tol=1e-9):
        sentences.append(f"the overall accuracy is {100 * scores.accuracy.micro:.2f} %, the groups give {100 * weighted:.2f} %")
    mean = sum(cell.accuracy for cell in scores.groups.values()) / max(1, len(scores.groups))
    if not isclose(scores.accuracy.macro, mean, abs_tol=1e-9):
        sentences.append(f"the macro average is {100 * scores.accuracy.macro:.2f} %, the groups give {100 * mean:.2f} %")
    if scores.num_pairs != len(rows):
        sentences.append(f"{scores.num_pairs} pairs are scored in the report, but there are {len(rows)} rows")
    sentences += _vote_problems(scores)
    if scores.k_curve and scores.k_curve[-1].k == report.votes:
        last = scores.k_curve[-1].accuracy
        if not isclose(last, scores.accuracy.micro, abs_tol=1e-9):
            sentences.append(
                f"all {report.votes} votes have {100 * last:.2f} % in the curve, which is not the overall accuracy"
            )
    low, high = scores.interval
    if not low - 1e-9 <= scores.accuracy.micro <= high + 1e-9:
        sentences.append("the overall accuracy is outside its own interval")
    return sentences


def _vote_problems(scores: Scores) -> list[str]:
    sentences, total = [], scores.num_votes_total
    valid = scores.statuses.get("ok", 0) + scores.statuses.get("tie", 0)
    if not isclose(scores.invalid_rate * total, total - valid, abs_tol=1e-6):
        sentences.append(f"the invalid rate is {100 * scores.invalid_rate:.2f} %, the statuses give another one")
    if sum(scores.statuses.values()) != total:
        sentences.append(f"the statuses are of {sum(scores.statuses.values())} votes, the report of {total}")
    return sentences


def addition(scores: Scores) -> str:
    """Return the sum that gives a report's overall accuracy, for a person to follow."""
    terms = " + ".join(f"{cell.n:,} × {100 * cell.accuracy:.2f}" for cell in scores.groups.values())
    return f"({terms}) / {scores.num_pairs:,} = {100 * scores.accuracy.micro:.2f}"
