"""By how much two runs of the same rows differ in other figures than accuracy, row by row and prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.benchmarks.report_model import RowScore
from rewardlab.metrics.accuracy import LEAST_BOTH
from rewardlab.metrics.intervals import DifferenceEstimate, difference_interval, macro_interval


@dataclass(frozen=True)
class FigureDifferences:
    """What one run has more than another (-1..1), with 95 % intervals over prompts: of the ``macro`` average over groups, of
    ``swap_consistency``, and of ``all_right``, the share of prompts whose every pair is right in both orders (Acc+). One is
    None where a run has no such figure."""

    macro: DifferenceEstimate
    swap_consistency: DifferenceEstimate | None
    all_right: DifferenceEstimate | None


def figure_differences(before: Sequence[RowScore], after: Sequence[RowScore], *, whole_prompts: bool) -> FigureDifferences:
    """Return the differences after - before of two scorings of the same rows. ``whole_prompts``: prompts whose every pair is
    right are counted. Raise KeyError where ``after`` lacks a row."""
    others = {row.row: row for row in after}
    pairs = [(row, others[row.row]) for row in before]
    return FigureDifferences(_macro(pairs), _swap(pairs), _all_right(pairs) if whole_prompts else None)


def _macro(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate:
    groups: dict[str, list[float]] = {}
    for row, other in pairs:
        groups.setdefault(row.group, []).append(other.score - row.score)
    means = [math.fsum(gaps) / len(gaps) for gaps in groups.values()]
    gaps, names, clusters = zip(*[(other.score - row.score, row.group, row.cluster) for row, other in pairs], strict=True)
    return DifferenceEstimate(math.fsum(means) / len(means), macro_interval(gaps, names, clusters, least=-1.0))


def _swap(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate | None:
    both = [(row, other) for row, other in pairs if row.alike is not None and other.alike is not None]
    if not both or len(both) < LEAST_BOTH * len(pairs):
        return None
    return _difference([float(bool(other.alike)) - bool(row.alike) for row, other in both], [row.cluster for row, _ in both])


def _all_right(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate:
    prompts: dict[str, list[tuple[float, float]]] = {}
    for row, other in pairs:
        prompts.setdefault(row.cluster, []).append((row.score, other.score))
    least = [map(min, zip(*scores, strict=True)) for scores in prompts.values()]
    return _difference([float(after == 1) - (before == 1) for before, after in least], list(prompts))


def _difference(gaps: Sequence[float], clusters: Sequence[str]) -> DifferenceEstimate:
    return DifferenceEstimate(math.fsum(gaps) / len(gaps), difference_interval(gaps, clusters))
