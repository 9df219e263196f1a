"""Can a judge's probabilities be trusted, and what is gained where it may abstain? Pure functions; numpy only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


def _events(probabilities: ArrayLike, happened: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(probabilities, dtype=float).ravel(), np.asarray(happened, dtype=float).ravel()
    if p.shape != y.shape or not p.size:
        raise ValueError(f"expected as many probabilities as outcomes, at least one, got {p.size} and {y.size}")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("a probability is not within 0..1 (or could not be read); leave it out, and count it")
    return p, y


def brier(probabilities: ArrayLike, happened: ArrayLike) -> float:
    """Mean squared error of probabilities of an event (response 0 is the better one) that happened, 1, or did not, 0.

    0 is best; 0.25 is what 1/2 everywhere earns.
    """
    p, y = _events(probabilities, happened)
    return float(np.mean((p - y) ** 2))


def nll(probabilities: ArrayLike, happened: ArrayLike) -> float:
    """Mean -log of the probability given to what happened, in nats; 0.693 for 1/2 everywhere, inf for a sure mistake."""
    p, y = _events(probabilities, happened)
    with np.errstate(divide="ignore"):
        return float(-np.mean(np.log(np.where(y == 1, p, 1 - p))))


@dataclass(frozen=True)
class Bin:
    """The probabilities of one bin: how many, their mean, and how often the event happened."""

    count: int
    predicted: float
    happened: float


def _bin_numbers(p: np.ndarray, num_bins: int) -> np.ndarray:
    return np.searchsorted(np.linspace(0, 1, num_bins + 1)[1:-1], p)


def reliability(probabilities: ArrayLike, happened: ArrayLike, num_bins: int = 10) -> list[Bin]:
    """Bins of equal width over 0..1, each open below and closed above (the first also below); empty ones are left out."""
    p, y = _events(probabilities, happened)
    number = _bin_numbers(p, num_bins)
    members = [number == n for n in np.unique(number)]
    return [Bin(int(inside.sum()), float(p[inside].mean()), float(y[inside].mean())) for inside in members]


def expected_calibration_error(probabilities: ArrayLike, happened: ArrayLike, num_bins: int = 10) -> float:
    """Mean over the bins of :func:`reliability`, weighted by count, of |mean probability - frequency|.

    Of the event "response 0 is better", over 0..1, not of confidence in the winner. A finite sample raises it; see
    :func:`least_calibration_error`.
    """
    p, y = _events(probabilities, happened)
    return float(np.abs(np.bincount(_bin_numbers(p, num_bins), p - y)).sum() / p.size)


def least_calibration_error(probabilities: ArrayLike, num_bins: int = 10, *, seed: int = 0, resamples: int = 200) -> float:
    """The calibration error that these very probabilities would show on average if they were exactly right.

    About 0.045 for 500 of them spread evenly over ten bins: an error of that size is no sign of miscalibration.
    """
    p, _ = _events(probabilities, np.zeros(np.size(probabilities)))
    outcomes = np.random.default_rng(seed).random((resamples, p.size)) < p
    return float(np.mean([expected_calibration_error(p, y, num_bins) for y in outcomes]))


def basic_interval(
    statistic: Callable[[np.ndarray], float], num: int, *, seed: int = 0, resamples: int = 1000, least: float = -math.inf
) -> tuple[float, float]:
    """95 % basic (reversed percentile) bootstrap interval of ``statistic(indices)`` over resampled units 0 .. num - 1.

    For what is no plain mean: a resample raises a calibration error above the sample's by about as much as the sample raised it
    above the truth, and the basic interval takes that out where the percentile one doubles it. At a calibration error of
    exactly 0 neither covers as it should: compare with :func:`least_calibration_error` there. ``least`` is a bound the
    statistic cannot pass (0 for an error).
    """
    draws = np.random.default_rng(seed).integers(0, num, size=(resamples, num))
    return _basic(statistic(np.arange(num)), [statistic(indices) for indices in draws], least)


def _basic(observed: float, values: Sequence[float] | np.ndarray, least: float) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return max(least, 2 * observed - float(high)), max(least, 2 * observed - float(low))


def calibration_error_interval(
    probabilities: ArrayLike,
    happened: ArrayLike,
    clusters: Sequence[str],
    num_bins: int = 10,
    *,
    seed: int = 0,
    resamples: int = 1000,
) -> tuple[float, float]:
    """:func:`basic_interval` of the calibration error over clusters of pairs that share a prompt.

    The error is a sum over bins of what its members add, so that a cluster is the row of what it adds to each bin.
    """
    p, y = _events(probabilities, happened)
    names = np.unique(np.asarray(clusters), return_inverse=True)[1]
    num, bins = int(names.max()) + 1, _bin_numbers(p, num_bins)
    errors_in = np.bincount(names * num_bins + bins, p - y, minlength=num * num_bins).reshape(num, num_bins)
    added = np.column_stack([errors_in, np.bincount(names)])
    kinds, many = np.unique(added.round(12), axis=0, return_counts=True)
    samples = np.random.default_rng(seed).multinomial(len(added), many / len(added), size=resamples) @ kinds
    errors = np.abs(samples[:, :num_bins]).sum(1) / samples[:, num_bins]
    return _basic(expected_calibration_error(p, y, num_bins), errors, 0.0)


@dataclass(frozen=True)
class RiskPoint:
    """A judge that abstains below a confidence: the share of all pairs it decides, and how many of those it gets wrong."""

    confidence: float
    coverage: float
    risk: float


def risk_coverage(confidences: Sequence[float | None], right: Sequence[bool]) -> list[RiskPoint]:
    """The curve from the surest decisions to all, one point per distinct confidence (in what the judge named, 0.5..1).

    A pair without a confidence (None: an even vote, or no valid one) is never decided: with any, coverage ends below 1.
    """
    decided = sorted(((c, r) for c, r in zip(confidences, right, strict=True) if c is not None), reverse=True)
    curve, wrong = [], 0
    for number, (confidence, is_right) in enumerate(decided, start=1):
        wrong += not is_right
        if number == len(decided) or decided[number][0] != confidence:
            curve.append(RiskPoint(confidence, number / len(confidences), wrong / number))
    return curve


def area_under_risk(curve: Sequence[RiskPoint]) -> float:
    """Mean risk over the coverages the curve reaches (0..1; AURC, arXiv 1805.08206); nan for none. Ties share their risk."""
    if not curve:
        return math.nan
    steps = np.diff([0.0, *(point.coverage for point in curve)])
    return float(np.dot(steps, [point.risk for point in curve]) / curve[-1].coverage)
