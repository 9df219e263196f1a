"""A mean of people's labels from few labelled pairs and many judged ones: power-tuned prediction-powered inference.

Angelopoulos, Duchi and Zrnic, PPI++ (arXiv 2311.01453). Pure functions; numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rewardlab.metrics.intervals import (
    FEWEST_CLUSTERS,
    AccuracyEstimate,
    Spread,
    cluster_numbers,
    interval_of,
    mean_estimate,
    student_quantile,
)

UNSEEN = 2  # further labels, on which judge and people disagree, in the variance


@dataclass(frozen=True)
class CorrectedMean:
    """The mean of a score in 0..1 over all pairs, three ways: by the judge alone, by labels alone, and corrected.

    ``judge_only`` is the mean of the judge's scores of all pairs; its interval ignores the judge's errors. ``label_only`` is
    the mean of people's scores of ``num_labelled`` pairs. ``corrected`` adds to it ``weight`` times the judge's mean over the
    ``num_unlabelled`` other pairs less its mean over the labelled ones. ``saved`` is the fraction of the labels that the judge
    saves: labels alone would need ``num_labelled / (1 - saved)`` for the width of the corrected interval.
    """

    judge_only: AccuracyEstimate
    label_only: AccuracyEstimate
    corrected: AccuracyEstimate
    weight: float
    saved: float
    num_labelled: int
    num_unlabelled: int
    label_variance: float
    judge_variance: float
    freedom: float

    def labels_for(self, half_width: float) -> int | None:
        """Return how many labels in all give an interval of +- ``half_width`` (0..1) on this many judged pairs; None where the
        judged pairs are too few for any number of labels, or the labels do not vary, which tells nothing."""
        left = (half_width / student_quantile(self.freedom)) ** 2 - self.judge_variance
        is_known = left > 0 and self.label_variance > 0
        return math.ceil(self.num_labelled * self.label_variance / left) if is_known else None


def corrected_mean(
    labels: Sequence[float] | np.ndarray,
    judged: Sequence[float] | np.ndarray,
    unlabelled: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | np.ndarray | None = None,
    unlabelled_clusters: Sequence[str] | np.ndarray | None = None,
) -> CorrectedMean:
    """Return the three means. ``labels`` are people's scores (0..1) of the labelled pairs, ``judged`` the judge's scores of the
    same, ``unlabelled`` its scores of the other pairs; labelled pairs are a random sample of all. Raise ValueError unless there
    are labels of four prompts or more, and one other pair, and for clusters of one part alone.

    The weight minimises the variance (eq. 7 of the paper), between 0, where the judge says nothing of the labels, and 1. The
    variance has :data:`UNSEEN` further labels on which judge and people disagree: a hundred labels may show none of the errors
    of a judge that is wrong on two pairs of a hundred, and the variance that they show is too small then. The
    weight is 0, too, if the corrected interval would be wider than that of the labels alone.
    """
    y, f, rest = (np.asarray(values, dtype=float) for values in (labels, judged, unlabelled))
    if (clusters is None) != (unlabelled_clusters is None):
        raise ValueError("expected the clusters of all pairs or of none, got those of one part")
    every = None if clusters is None or unlabelled_clusters is None else [*clusters, *unlabelled_clusters]
    numbers = cluster_numbers(every, y.size + rest.size)
    of_labels, num_clusters = numbers[: y.size], int(numbers.max(initial=-1)) + 1
    num = np.unique(of_labels).size
    if num < FEWEST_CLUSTERS or not rest.size:
        raise ValueError(
            f"expected labels of at least {FEWEST_CLUSTERS} prompts and one pair without a label, got {num} and {rest.size}"
        )

    def by_cluster(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.bincount(at, (values - values.mean()) / values.size, num_clusters)

    label, same, other = by_cluster(y, of_labels), by_cluster(f, of_labels), by_cluster(rest, numbers[y.size :])
    against = same - other
    unseen = UNSEEN / num**2
    weight = min(1.0, max(0.0, float(label @ against) / (float(against @ against) + unseen)))
    scale, more = num / (num - 1), weight**2 * unseen
    label_part = scale * (float(((label - weight * same) ** 2).sum()) + more)
    judge_part = scale * weight**2 * float((other**2).sum())
    variance = scale * (float(((label - weight * against) ** 2).sum()) + more)
    mean = float(y.mean() + weight * (rest.mean() - f.mean()))
    freedom = num - 1.0
    alone = scale * float((label**2).sum())
    corrected = AccuracyEstimate(min(1.0, max(0.0, mean)), interval_of(mean, Spread(variance, freedom, num)))
    label_only = mean_estimate(y, of_labels)
    if np.ptp(corrected.interval) > np.ptp(label_only.interval):  # few labels, and a mean close to 0 or 1
        corrected, weight, variance, label_part, judge_part = label_only, 0.0, alone, alone, 0.0
    return CorrectedMean(
        judge_only=mean_estimate(np.concatenate([f, rest]), numbers),
        label_only=label_only,
        corrected=corrected,
        weight=weight,
        saved=1 - variance / alone if alone else 0.0,
        num_labelled=y.size,
        num_unlabelled=rest.size,
        label_variance=label_part,
        judge_variance=judge_part,
        freedom=freedom,
    )


HALF_WIDTH = 0.05  # of the interval that more labels are counted for
Score = tuple[float | None, float, str]  # of a pair (0..1): by people (None: no label), by the judge; its prompt


@dataclass(frozen=True)
class CorrectedScore:
    """A mean (0..1) over ``num_pairs``: by the judge, by the labels of ``num_labelled`` of them, and corrected.

    ``corrected`` is the mean of the labels if all pairs have one, None if labels are of fewer than four prompts. ``saved`` is
    the fraction of the labels that the judge saves (:class:`CorrectedMean`); ``labels_more`` is how many labels more give an
    interval of ± 5 points, None if no number does, or that cannot be told.
    """

    num_pairs: int
    num_labelled: int
    judge_only: AccuracyEstimate
    label_only: AccuracyEstimate | None
    corrected: AccuracyEstimate | None
    saved: float | None
    labels_more: int | None


def corrected_score(scores: Sequence[Score]) -> CorrectedScore:
    """Return the three means of at least one pair's scores."""
    labelled = [(people, judge, prompt) for people, judge, prompt in scores if people is not None]
    others = [(judge, prompt) for people, judge, prompt in scores if people is None]
    prompts = [prompt for *_, prompt in labelled]
    label_only = mean_estimate([people for people, *_ in labelled], prompts) if labelled else None
    judge_only = mean_estimate([judge for _, judge, _ in scores], [prompt for *_, prompt in scores])
    if others and len(set(prompts)) >= FEWEST_CLUSTERS:
        people, judged, _ = zip(*labelled, strict=True)
        unlabelled, other_prompts = zip(*others, strict=True)
        mean = corrected_mean(people, judged, unlabelled, prompts, other_prompts)
        needed = mean.labels_for(HALF_WIDTH)
        more = None if needed is None else max(0, needed - len(labelled))
        return CorrectedScore(len(scores), len(labelled), judge_only, label_only, mean.corrected, mean.saved, more)
    return CorrectedScore(len(scores), len(labelled), judge_only, label_only, None if others else label_only, None, None)
