"""How far a judge's confidence can be trusted: calibration of its vote shares and probabilities, and what abstaining buys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rewardlab.benchmarks.report_model import Calibration, Confidence
from rewardlab.metrics.accuracy import Labeled
from rewardlab.metrics.calibration import (
    area_under_risk,
    brier,
    calibration_error_interval,
    expected_calibration_error,
    least_calibration_error,
    reliability,
    risk_coverage,
)
from rewardlab.metrics.intervals import mean_interval
from rewardlab.types import BOTH_ORDERS
from rewardlab.verdicts.votes import in_order, probability_of_0, share_for_0

LEAST_VOTES = 3  # of each order: the share of fewer is 0, a half or 1 for most pairs
MOST_POINTS = 60  # of a risk-coverage curve


def confidence_report(items: Sequence[Labeled], clusters: Sequence[str]) -> dict[str, Confidence]:
    """Return, by name, ``vote_share``, from three votes in each order on, and, where votes carry margins,
    ``verdict_probability``. Empty unless all pairs are shown in both orders: in one order alone a confidence is the position's
    as much as the answer's.
    """
    num_votes = min((len(in_order(item.judgment.votes, order)) for item in items for order in BOTH_ORDERS), default=0)
    if not num_votes:
        return {}
    table = {}
    if num_votes >= LEAST_VOTES:
        table["vote_share"] = calibrate(items, [share_for_0(item.judgment.votes) for item in items], clusters)
    probabilities = [probability_of_0(item.judgment.votes) for item in items]
    if any(p is not None for p in probabilities):
        table["verdict_probability"] = calibrate(items, probabilities, clusters)
    return table


def calibrate(items: Sequence[Labeled], shares: Sequence[float | None], clusters: Sequence[str]) -> Confidence:
    """Calibration of the confidence in the response named: max(share, 1 - share), beside whether it is the better one.

    ``undecided`` pairs, with a share of exactly one half or none at all, name nobody and are left out of all but the count and
    the coverage. ECE (ten bins over 0..1, of which confidence can fill five) has a basic bootstrap interval over prompts;
    ``ece_if_exact`` is what the same confidences would show if they were exactly right. Brier is of the same events: 0.25 for
    one half.
    """
    confidences = [None if share is None or share == 0.5 else max(share, 1 - share) for share in shares]
    right = [share is not None and item.preferred == int(share < 0.5) for item, share in zip(items, shares, strict=True)]
    curve = risk_coverage(confidences, right)
    sure = np.array([c for c in confidences if c is not None])
    hits = np.array([r for c, r in zip(confidences, right, strict=True) if c is not None], dtype=float)
    prompts = [cluster for cluster, c in zip(clusters, confidences, strict=True) if c is not None]
    calibration = None
    if len(sure):
        calibration = Calibration(
            mean_confidence=float(sure.mean()),
            accuracy=float(hits.mean()),
            ece=expected_calibration_error(sure, hits),
            ece_interval=calibration_error_interval(sure, hits, prompts),
            ece_if_exact=least_calibration_error(sure),
            brier=brier(sure, hits),
            reliability=tuple(reliability(sure, hits)),
            aurc=area_under_risk(curve),
            risk_coverage=tuple(curve[n] for n in _thinned(len(curve))),
            brier_interval=mean_interval((sure - hits) ** 2, prompts),
        )
    return Confidence(len(items), len(items) - len(sure), calibration)


def _thinned(number: int) -> list[int]:
    """Return at most :data:`MOST_POINTS` of so many places, the last among them."""
    step = max(1, math.ceil(number / MOST_POINTS))
    return sorted({*range(step - 1, number, step), number - 1})
