"""How sure a number is: intervals of means, differences and shares, and a test of paired differences. Pure; numpy only.

Intervals are 95 %. Pairs that share a prompt are resampled together, as a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Interval = tuple[float, float]
_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class AccuracyEstimate:
    """An accuracy (0..1) and its interval."""

    accuracy: float
    interval: Interval


def wilson_interval(hits: int, number: int) -> Interval:
    """Return Wilson's score interval of the share ``hits / number`` (0..1). Raise ValueError unless 0 <= hits <= number > 0."""
    if number < 1 or not 0 <= hits <= number:
        raise ValueError(f"expected a share of at least one, got {hits} of {number}")
    share, z2 = hits / number, _Z**2
    center, width = (2 * number * share + z2) / (2 * (number + z2)), _Z / (2 * (number + z2))
    delta = width * math.sqrt(4 * number * share * (1 - share) + z2)
    return 0.0 if hits == 0 else center - delta, 1.0 if hits == number else center + delta


def share_with_interval(hits: int, number: int) -> list[float] | None:
    """Return [share, lower, upper] by :func:`wilson_interval`, as reports hold it; None of nothing."""
    return [hits / number, *wilson_interval(hits, number)] if number else None


def mean_estimate(scores: Sequence[float], clusters: Sequence[str] | None = None) -> AccuracyEstimate:
    """Return the mean of at least one score, with its :func:`mean_interval`."""
    return AccuracyEstimate(sum(scores) / len(scores), mean_interval(scores, clusters))


def mean_interval(
    scores: Sequence[float], clusters: Sequence[str] | None = None, *, seed: int = 0, resamples: int = 2000
) -> Interval:
    """95 % percentile bootstrap interval of the mean over pairs, or over clusters of pairs that share a prompt.

    ``scores`` are per pair (0..1, or differences in -1..1). Scores that are all equal leave nothing to resample; for 0 or 1
    the Wilson bound of as many trials as there are clusters is used, so that a perfect score on few prompts keeps an honest
    width. Of a single cluster nothing can be said: (0, 1), or (-1, 1) for differences. Empty: (nan, nan).
    """
    values = np.asarray(scores, dtype=float)
    if values.size == 0:
        return math.nan, math.nan
    names = np.arange(values.size) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums, counts = np.bincount(names, weights=values), np.bincount(names)
    if np.ptp(values) == 0 and values[0] in (0.0, 1.0):
        slack = 3.8416 / (sums.size + 3.8416)
        return (0.0, slack) if values[0] == 0 else (1 - slack, 1.0)
    if sums.size == 1:
        return (-1.0 if values.min() < 0 else 0.0), 1.0
    # Clusters alike are interchangeable: how often each kind is drawn is multinomial, which is the same bootstrap and fast.
    kinds, many = np.unique(np.stack([sums, counts]), axis=1, return_counts=True)
    dice, means = np.random.default_rng(seed), []
    block = max(1, 20_000_000 // many.size)  # of resamples, for memory
    for start in range(0, resamples, block):
        samples = dice.multinomial(sums.size, many / sums.size, size=min(block, resamples - start))
        means.append(samples @ kinds[0] / (samples @ kinds[1]))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def difference_interval(differences: Sequence[float], clusters: Sequence[str] | None = None, *, seed: int = 0) -> Interval:
    """:func:`mean_interval` of differences in -1..1. Where all are equal: as far as n of them can tell, to either side."""
    low, high = mean_interval(differences, clusters, seed=seed)
    if not any(differences):
        return -high, high
    if all(gap == -1 for gap in differences):
        low, high = mean_interval([1.0] * len(differences), clusters, seed=seed)
        return -high, -low
    return low, high


def paired_difference(before: Mapping[str, float], after: Mapping[str, float], *, seed: int = 0) -> tuple[float, Interval]:
    """Mean of ``after - before`` over the pairs and its 95 % bootstrap interval. Raises ValueError unless both name the
    same pairs."""
    if before.keys() != after.keys():
        raise ValueError("a paired comparison needs the same pairs on both sides")
    differences = [after[name] - before[name] for name in before]
    return float(np.mean(differences)), difference_interval(differences, seed=seed)


def sign_flip_p(
    differences: Sequence[float], clusters: Sequence[str] | None = None, *, flips: int = 10_000, seed: int = 0
) -> float:
    """Two-sided p-value (0..1) of paired differences: how often random signs make a sum as large, cluster by cluster.

    The hypothesis is that the two sides are exchangeable within each cluster. Clusters whose differences sum to 0 say nothing
    and are left out; with up to 13 left all sign patterns are taken, else ``flips`` random ones and the observed one.
    """
    values = np.asarray(differences, dtype=float)
    names = np.arange(values.size) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums = np.bincount(names, weights=values) if values.size else values
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
