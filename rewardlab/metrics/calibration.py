"""Calibration of a judge's probabilities, and the risk of a judge that may abstain. Pure functions; numpy only."""

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
        raise ValueError("a probability is not within 0..1 (or is nan); leave it out, and count it")
    return p, y


def brier(probabilities: ArrayLike, happened: ArrayLike) -> float:
    """Return the mean squared error of probabilities of an event (response 0 is better) that happened, 1, or not, 0. 0 is best;
    constant 1/2 scores 0.25."""
    p, y = _events(probabilities, happened)
    return float(np.mean((p - y) ** 2))


def nll(probabilities: ArrayLike, happened: ArrayLike) -> float:
    """Return the mean negative log-likelihood in nats; 0.693 for constant 1/2, inf for a certain mistake."""
    p, y = _events(probabilities, happened)
    with np.errstate(divide="ignore"):
        return float(-np.mean(np.log(np.where(y == 1, p, 1 - p))))


@dataclass(frozen=True)
class Bin:
    """The probabilities of one bin: their count, their mean, and the frequency of the event."""

    count: int
    predicted: float
    happened: float


def _bin_numbers(p: np.ndarray, num_bins: int) -> np.ndarray:
    return np.searchsorted(np.linspace(0, 1, num_bins + 1)[1:-1], p)


def reliability(probabilities: ArrayLike, happened: ArrayLike, num_bins: int = 10) -> list[Bin]:
    """Return the non-empty bins of equal width over 0..1, each open below and closed above (the first also below)."""
    p, y = _events(probabilities, happened)
    number = _bin_numbers(p, num_bins)
    members = [number == n for n in np.unique(number)]
    return [Bin(int(inside.sum()), float(p[inside].mean()), float(y[inside].mean())) for inside in members]


def expected_calibration_error(probabilities: ArrayLike, happened: ArrayLike, num_bins: int = 10) -> float:
    """Return the mean of |mean probability - frequency| over the bins of :func:`reliability`, weighted by count.

    For probabilities of the event "response 0 is better", not for confidence in the winner. A finite sample raises it; see
    :func:`least_calibration_error`.
    """
    p, y = _events(probabilities, happened)
    return float(np.abs(np.bincount(_bin_numbers(p, num_bins), p - y)).sum() / p.size)


def least_calibration_error(probabilities: ArrayLike, num_bins: int = 10, *, seed: int = 0, resamples: int = 200) -> float:
    """Return the expected calibration error of these probabilities if they were exactly calibrated.

    About 0.045 for 500 of them spread evenly over ten bins: an error of that size does not indicate miscalibration.
    """
    p, _ = _events(probabilities, np.zeros(np.size(probabilities)))
    outcomes = np.random.default_rng(seed).random((resamples, p.size)) < p
    return float(np.mean([expected_calibration_error(p, y, num_bins) for y in outcomes]))


def basic_interval(
    statistic: Callable[[np.ndarray], float], num: int, *, seed: int = 0, resamples: int = 1000, least: float = -math.inf
) -> tuple[float, float]:
    """Return the 95 % basic (reversed percentile) bootstrap interval of ``statistic(indices)`` over resampled units 0..num - 1.

    For statistics with bias: resampling raises a calibration error by about as much as the sample did, which the basic interval
    corrects and the percentile interval doubles. At a calibration error of exactly 0 neither has its coverage: compare with
    :func:`least_calibration_error`. ``least``: a lower bound of the statistic (0 for an error).
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
    """Return :func:`basic_interval` of the calibration error over clusters of pairs that share a prompt.

    The error is a sum over bins, so that a cluster is a row of its terms in each bin.
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
    """A judge that abstains below a ``confidence``: the fraction of pairs it decides, and its error rate on those."""

    confidence: float
    coverage: float
    risk: float


def risk_coverage(confidences: Sequence[float | None], right: Sequence[bool]) -> list[RiskPoint]:
    """Return the curve from the most confident decisions to all, a point per distinct confidence (in the winner, 0.5..1).

    A pair without a confidence (None: an even vote, or no valid one) is never decided; coverage then ends below 1.
    """
    decided = sorted(((c, r) for c, r in zip(confidences, right, strict=True) if c is not None), reverse=True)
    curve, wrong = [], 0
    for number, (confidence, is_right) in enumerate(decided, start=1):
        wrong += not is_right
        if number == len(decided) or decided[number][0] != confidence:
            curve.append(RiskPoint(confidence, number / len(confidences), wrong / number))
    return curve


def area_under_risk(curve: Sequence[RiskPoint]) -> float:
    """Return the mean risk over the curve's coverages (0..1; AURC, arXiv 1805.08206); nan for none. Ties share their risk."""
    if not curve:
        return math.nan
    steps = np.diff([0.0, *(point.coverage for point in curve)])
    return float(np.dot(steps, [point.risk for point in curve]) / curve[-1].coverage)
