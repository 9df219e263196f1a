"""How sure a number is: intervals of means, differences and shares, and a test of paired differences. Pure; numpy only.

Intervals are 95 %. Pairs that share a prompt are a cluster: what varies is the prompt. ``eval/coverage.py`` measures how often
these intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

Interval = tuple[float, float]
FEWEST_CLUSTERS = 4  # of fewer prompts no interval holds the truth as often as it says
_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_SIMPSON = np.array([1, *[4, 2] * 199, 4, 1]) / 1200  # weights over an interval of length 1


@dataclass(frozen=True)
class AccuracyEstimate:
    """An accuracy (0..1) and its interval."""

    accuracy: float
    interval: Interval


@dataclass(frozen=True)
class DifferenceEstimate:
    """A paired difference of accuracies (-1..1) and its interval."""

    difference: float
    interval: Interval


def wilson_interval(hits: int, number: int) -> Interval:
    """Return Wilson's score interval of the share ``hits / number`` (0..1). Raise ValueError unless 0 <= hits <= number > 0."""
    if number < 1 or not 0 <= hits <= number:
        raise ValueError(f"expected a count out of at least one, got {hits} of {number}")
    share, z2 = hits / number, _Z**2
    center, width = (2 * number * share + z2) / (2 * (number + z2)), _Z / (2 * (number + z2))
    delta = width * math.sqrt(4 * number * share * (1 - share) + z2)
    return 0.0 if hits == 0 else center - delta, 1.0 if hits == number else center + delta


def share_with_interval(hits: int, number: int) -> list[float] | None:
    """Return [share, lower, upper] by :func:`wilson_interval`, as reports hold it; None of nothing."""
    return [hits / number, *wilson_interval(hits, number)] if number else None


def mean_estimate(scores: Sequence[float] | np.ndarray, clusters: Sequence[str] | np.ndarray | None = None) -> AccuracyEstimate:
    """Return the mean of at least one score, with its :func:`mean_interval`."""
    return AccuracyEstimate(math.fsum(scores) / len(scores), mean_interval(scores, clusters))


def mean_interval(scores: Sequence[float] | np.ndarray, clusters: Sequence[str] | np.ndarray | None = None) -> Interval:
    """95 % interval of the mean of scores in 0..1 over pairs, or over clusters of pairs that share a prompt.

    :func:`ratio_interval` of scores that count alike. Empty: (nan, nan).
    """
    return ratio_interval(scores, np.ones(len(scores)), clusters)


def ratio_interval(
    numerators: Sequence[float] | np.ndarray,
    denominators: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | np.ndarray | None = None,
    *,
    least: float = 0.0,
    most: float = 1.0,
) -> Interval:
    """95 % interval of ``sum(numerators) / sum(denominators)``, a ratio in least..most, over clusters of pairs.

    The variance is the cluster-robust estimator CR2 (Bell and McCaffrey, Survey Methodology 28, 2002). Student's t has their
    degrees of freedom, at the correlation within clusters that the residuals show (Imbens and Kolesár, 2016,
    doi:10.1162/REST_a_00552): clusters that are few, or of unequal size, have fewer. The ends are computed on the logit scale,
    so that they stay within least..most.

    Clusters that all have one ratio leave no variance: then a further one may differ, as often as Wilson's bound for none of so
    many admits. Of fewer than :data:`FEWEST_CLUSTERS` clusters nothing can be said: (least, most). Nothing to divide by, or
    nan: (nan, nan). Raise ValueError for a ratio beyond them.
    """
    values, weights = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    numbers = cluster_numbers(clusters, len(values))
    counts = np.bincount(numbers, weights)
    numbers, values, weights = (part[counts[numbers] > 0] for part in (numbers, values, weights))
    sums, counts = np.bincount(numbers, values, len(counts))[counts > 0], counts[counts > 0]
    if not counts.size:
        return math.nan, math.nan
    ratio = float(sums.sum() / counts.sum())
    if math.isnan(ratio):
        return math.nan, math.nan
    if not least - 1e-9 <= ratio <= most + 1e-9:
        raise ValueError(f"expected a ratio within {least:g}..{most:g}, got {ratio:g}")
    if counts.size < FEWEST_CLUSTERS:
        return least, most
    squares = float(((values - ratio * weights) ** 2).sum())
    spread = spread_of(sums, counts, squares, float((weights**2).sum()))
    return interval_of(ratio, spread, least=least, most=most)


def difference_interval(differences: Sequence[float], clusters: Sequence[str] | np.ndarray | None = None) -> Interval:
    """:func:`mean_interval` of differences in -1..1. Where all are equal: as far as n of them can tell, to either side."""
    return ratio_interval(differences, np.ones(len(differences)), clusters, least=-1.0)


def macro_interval(
    scores: Sequence[float],
    groups: Sequence[str],
    clusters: Sequence[str] | np.ndarray | None = None,
    *,
    least: float = 0.0,
) -> Interval:
    """95 % interval of the unweighted mean of the groups' means, of scores in least..1; (nan, nan) of nothing.

    The groups' own intervals are joined end by end (Zou and Donner 2008, variance estimates recovered from the ends), with one
    quantile for all, of Satterthwaite's degrees of freedom, and with the correlation of groups that share clusters. A group of
    fewer than :data:`FEWEST_CLUSTERS` clusters may be anywhere in least..1.
    """
    numbers = cluster_numbers(clusters, len(scores))
    if not numbers.size:
        return math.nan, math.nan
    # Of groups and clusters only the cells that have a pair are kept: thousands of groups by as many clusters are gigabytes.
    group, num = np.unique(np.asarray(groups), return_inverse=True)[1].ravel(), int(numbers.max()) + 1
    cells, cell_of = np.unique(group * num + numbers, return_inverse=True)
    sums, counts = np.bincount(cell_of.ravel(), scores), np.bincount(cell_of.ravel())
    group_of, cluster_of = cells // num, cells % num
    size, total = np.bincount(group_of, counts), np.bincount(group_of, sums)
    means = total / size
    influence = sums - means[group_of] * counts  # of a cluster on its group's mean, times the group's size
    members = np.split(np.arange(cells.size), np.flatnonzero(np.diff(group_of)) + 1)
    squares = np.bincount(group, (np.asarray(scores) - means[group]) ** 2)
    spreads = [
        spread_of(sums[m], counts[m], float(squares[n]), float(size[n])) if m.size >= FEWEST_CLUSTERS else None
        for n, m in enumerate(members)
    ]
    variances = [(spread.variance, spread.freedom) for spread in spreads if spread is not None]
    joint = sum(variance for variance, _ in variances)
    freedom = joint**2 / sum(variance**2 / degrees for variance, degrees in variances) if joint else math.inf
    ends = [
        (least, 1.0) if spread is None else _ends(float(mean), spread, student_quantile(freedom), least, 1.0)
        for mean, spread in zip(means, spreads, strict=True)
    ]
    norms = np.sqrt(np.bincount(group_of, influence**2))
    shares = influence / np.maximum(norms, 1e-300)[group_of]  # groups correlate by the product of these, summed over clusters

    def joined(reach: np.ndarray) -> float:
        by_cluster = np.bincount(cluster_of, reach[group_of] * shares)
        return math.sqrt(float((by_cluster**2).sum() + (reach[norms == 0] ** 2).sum()))

    below, above = (np.abs(means - [end[side] for end in ends]) / len(means) for side in (0, 1))
    middle = float(np.mean(means))
    return max(least, middle - joined(below)), min(1.0, middle + joined(above))


def cluster_numbers(clusters: Sequence[str] | np.ndarray | None, size: int) -> np.ndarray:
    """Return a number from 0 on for each of ``size`` pairs, alike for those of one cluster; each its own where None."""
    if clusters is None:
        return np.arange(size)
    return np.unique(np.asarray(clusters), return_inverse=True)[1].ravel()


def _by_cluster(values: Sequence[float] | np.ndarray, clusters: Sequence[str] | np.ndarray | None) -> np.ndarray:
    return np.bincount(cluster_numbers(clusters, len(values)), weights=values)


@dataclass(frozen=True)
class Spread:
    """The variance of a ratio over ``num`` clusters, and the degrees of freedom of that variance."""

    variance: float
    freedom: float
    num: int


def spread_of(sums: np.ndarray, counts: np.ndarray, squares: float, size_squares: float) -> Spread:
    """Return CR2's variance of ``sum(sums) / sum(counts)`` over at least two clusters, and its degrees of freedom, 1 or more.

    ``squares`` and ``size_squares`` are sums over single pairs, of their squared residuals and denominators. The residual of
    a cluster is divided by the root of what its leverage, its fraction of the counts, leaves of its variance. In the working
    model pairs of a cluster have one correlation.
    """
    size, residuals = counts.sum(), sums - sums.sum() / counts.sum() * counts
    if float((residuals**2).sum()) < 1e-18 * size**2:
        return Spread(0.0, math.inf, counts.size)
    leverage = counts / size
    joint = float((counts**2).sum()) - size_squares  # products of denominators of two pairs of one cluster
    shared = (float((residuals**2).sum()) - squares) / joint if joint > 1e-9 * size_squares else 0.0
    correlation = min(1.0, max(0.0, shared * size_squares / squares))
    modelled = (1 - correlation) * size_squares / size * counts + correlation * counts**2  # variances of sums, by cluster
    scale = 1 / (1 - leverage)
    # The quadratic form of the variance has the matrix diag(alone) + X K X', with X of two columns, and K and X'X of 2 x 2.
    alone, columns = scale * modelled, np.sqrt(scale)[:, None] * np.stack([modelled, leverage], axis=1)
    form = np.array([[0.0, -1.0], [-1.0, modelled.sum()]])
    crossed, product = ((columns @ form) * columns).sum(1), form @ columns.T @ columns
    freedom = (alone + crossed).sum() ** 2 / ((alone**2).sum() + 2 * (alone * crossed).sum() + np.trace(product @ product))
    return Spread(float((scale * residuals**2).sum()) / size**2, float(freedom), counts.size)


def interval_of(ratio: float, spread: Spread, *, least: float = 0.0, most: float = 1.0) -> Interval:
    """Return the 95 % interval of a ratio in least..most (a ratio outside counts as its bound) with this spread."""
    return _ends(min(most, max(least, ratio)), spread, student_quantile(spread.freedom), least, most)


def _ends(ratio: float, spread: Spread, quantile: float, least: float, most: float) -> Interval:
    if spread.variance == 0:
        slack = _Z**2 / (spread.num + _Z**2)
        return ratio - slack * (ratio - least), ratio + slack * (most - ratio)
    share = min(max((ratio - least) / (most - least), 1e-12), 1 - 1e-12)
    middle = math.log(share / (1 - share))
    half = quantile * math.sqrt(spread.variance) / (most - least) / (share * (1 - share))
    low, high = (least + (most - least) * _logistic(end) for end in (middle - half, middle + half))
    return low, high


def _logistic(value: float) -> float:
    return 0.5 + 0.5 * math.tanh(value / 2)


def student_tail(value: float, freedom: float) -> float:
    """Return the probability that Student's t with ``freedom`` (1 or more) degrees of freedom exceeds ``value``, to 1e-9; of
    fewer than 3, to 1e-4."""
    most = 10 / math.sqrt(freedom)  # nothing is beyond it: where the density is narrow, Simpson's steps must be as fine
    return 0.5 - _student_angle(min(most, max(-most, math.atan(value / math.sqrt(freedom)))), freedom)[0]


def _student_angle(angle: float, freedom: float) -> tuple[float, float]:
    """Return the probability of Student's t between 0 and sqrt(freedom) tan(angle), and its derivative by the angle: the
    density is proportional to cos(angle) ** (freedom - 1); Simpson's rule integrates it."""
    half = freedom / 2
    log_ratio = math.log(half) / 2 if freedom > 1e7 else math.lgamma(half + 0.5) - math.lgamma(half)
    peak = math.exp(log_ratio) / math.sqrt(math.pi)
    density = peak * np.cos(np.linspace(0, angle, _SIMPSON.size)) ** (freedom - 1)
    return angle * float(_SIMPSON @ density), float(density[-1])


@cache
def student_quantile(freedom: float, tail: float = 0.025) -> float:
    """Return the value that Student's t exceeds with probability ``tail`` (0..0.5): Newton's method, from the normal one."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(1 - tail)
    angle, step = math.atan(NormalDist().inv_cdf(1 - tail) / math.sqrt(freedom)), math.inf
    while step > 1e-12:
        inside, density = _student_angle(angle, freedom)
        step = (0.5 - tail - inside) / density
        angle += step
    return math.sqrt(freedom) * math.tan(angle)


def paired_difference(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, Interval]:
    """Mean of ``after - before`` over the pairs and its 95 % interval. Raises ValueError unless both name the
    same pairs."""
    if before.keys() != after.keys():
        raise ValueError("a paired comparison needs the same pairs on both sides")
    differences = [after[name] - before[name] for name in before]
    return float(np.mean(differences)), difference_interval(differences)


def sign_flip_p(
    differences: Sequence[float], clusters: Sequence[str] | np.ndarray | None = None, *, flips: int = 10_000, seed: int = 0
) -> float:
    """Two-sided p-value (0..1) of paired differences: how often random signs make a sum as large, cluster by cluster.

    The hypothesis is that the two sides are exchangeable within each cluster. Clusters whose differences sum to 0 say nothing
    and are left out; with up to 13 left all sign patterns are taken, else ``flips`` random ones and the observed one.
    """
    sums = _by_cluster(differences, clusters)
    sums = sums[np.abs(sums) > 1e-12]
    if not sums.size:
        return 1.0
    observed = abs(sums.sum()) - 1e-9
    if sums.size <= 13:
        signs = 1 - 2 * ((np.arange(2**sums.size)[:, None] >> np.arange(sums.size)) & 1)
        return float(np.mean(np.abs(signs @ sums) >= observed))
    dice, hits = np.random.default_rng(seed), 0
    for start in range(0, flips, 1000):  # a thousand at a time: memory
        signs = 1 - 2 * dice.integers(0, 2, size=(min(1000, flips - start), sums.size))
        hits += int((np.abs(signs @ sums) >= observed).sum())
    return (hits + 1) / (flips + 1)
