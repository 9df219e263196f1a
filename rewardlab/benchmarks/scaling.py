"""Test-time scaling: what more votes on a pair buy, counted in samples, by each way of reducing them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.report_model import CurvePoint, StoppingPoint
from rewardlab.metrics.accuracy import Labeled, any_correct_score, balanced_accuracy, score_of, smallest_pool
from rewardlab.metrics.intervals import AccuracyEstimate, cluster_numbers, difference_interval, mean_estimate
from rewardlab.types import BOTH_ORDERS
from rewardlab.verdicts.early_stopping import EarlyStop, alternate_orders, stop_early
from rewardlab.verdicts.votes import in_order, judgment_by_probability, majority

ERRORS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # of stopping on the side that all votes together reject


EVERY_ODD = 21  # all odd K up to here; above, so many more as even steps of a logarithmic axis
NUM_ABOVE = 16


def curve_ks(pool: int) -> list[int]:
    """Odd K up to the pool, where no vote of valid samples can tie, and the pool itself: all up to 21, some of those above."""
    if pool <= EVERY_ODD:
        return sorted({*range(1, pool + 1, 2), *([pool] if pool else [])})
    steps = (EVERY_ODD * (pool / EVERY_ODD) ** (n / NUM_ABOVE) for n in range(1, NUM_ABOVE))
    return sorted({*range(1, EVERY_ODD + 1, 2), *(2 * round((step - 1) / 2) + 1 for step in steps), pool})


def k_curve(items: Sequence[Labeled], clusters: Sequence[str], num_votes: int) -> tuple[CurvePoint, ...]:
    """Accuracy for odd K up to the smallest pool (:func:`curve_ks`), exact over all subsets of the pool, with intervals.

    ``accuracy``: the majority of K votes of one order, each order a trial. ``balanced``: one majority of K votes of each of
    both orders, 2K samples; None where one order alone was asked. ``weighted``: as many samples by the probabilities of their
    verdicts, the mean over disjoint blocks of the pool (all subsets are too many); None where votes carry none.
    """
    curve, pairs, names = [], [item.tallies for item in items], cluster_numbers(clusters, len(items))
    both = all(len(tallies) == 2 for tallies in pairs)
    has_margins = both and any(vote.margin is not None for item in items for vote in item.judgment.votes)
    # Pairs alike are scored once: of many pairs with few votes, most are.
    places = {tallies: place for place, tallies in enumerate(dict.fromkeys(pairs))}
    place_of = np.array([places[tallies] for tallies in pairs], dtype=int)
    for k in curve_ks(min(num_votes, smallest_pool(items))):
        one_order = mean_estimate(np.array([score_of(tallies, k) for tallies in places])[place_of], names)
        any_correct = float(np.array([any_correct_score(tallies, k) for tallies in places])[place_of].mean())
        balanced = np.array([_balanced_score(one, k) for one in places])[place_of] if both else None
        weighted = [weighted_score(item, k) for item in items] if has_margins else []
        curve.append(
            CurvePoint(
                k,
                one_order.accuracy,
                one_order.interval,
                any_correct,
                None if balanced is None else mean_estimate(balanced, names),
                mean_estimate(weighted, names) if weighted else None,
            )
        )
    return tuple(curve)


def _balanced_score(tallies: Sequence[tuple[int, int, int]], k: int) -> float:
    (right, _, total), (other_right, _, other_total) = tallies
    return balanced_accuracy((right, total), (other_right, other_total), k)


def weighted_score(item: Labeled, k: int) -> float:
    """Share of disjoint blocks of ``k`` votes of each order whose probabilities name the better response (0..1)."""
    given, swapped = (in_order(item.judgment.votes, order) for order in BOTH_ORDERS)
    blocks = range(0, min(len(given), len(swapped)) - k + 1, k)
    winners = [judgment_by_probability("", (*given[at : at + k], *swapped[at : at + k])).outcome.winner for at in blocks]
    return winners.count(item.preferred) / len(winners)


def decision(items: Sequence[Labeled], clusters: Sequence[str]) -> AccuracyEstimate | None:
    """Each pair decided once, by all its votes of both orders (by their probabilities where they carry any); an even one is
    not right. None where a pair was asked in one order alone."""
    if any(len(item.tallies) != 2 for item in items) or not items:
        return None
    return mean_estimate([float(item.judgment.outcome.winner == item.preferred) for item in items], clusters)


def sequential(rows: Sequence[Row], items: Sequence[Labeled]) -> tuple[StoppingPoint, ...]:
    """What stopping early would have cost: for each error, samples and tokens per pair and the accuracy of their majorities.

    Here a pair is one trial: the majority of its votes of both orders, an even one wrong. The first row is the whole pool; the
    others name the paired difference to it, with its interval. Empty where a pair has fewer than two votes in each order.
    """
    if smallest_pool(items) < 2 or any(len(item.tallies) != 2 for item in items):
        return ()
    clusters, all_votes, points = [row.cluster for row in rows], [float("nan")], []
    for error in (None, *ERRORS):
        ends = [_all_votes(item) if error is None else stop_early(item.judgment.votes, error) for item in items]
        right = [float(end.outcome.winner == item.preferred) for end, item in zip(ends, items, strict=True)]
        all_votes = right if error is None else all_votes
        gaps = [now - before for now, before in zip(right, all_votes, strict=True)]
        accuracy = mean_estimate(right, clusters)
        points.append(
            StoppingPoint(
                error=error,
                samples=sum(end.num_votes for end in ends) / len(ends),
                tokens=tokens / len(ends) if (tokens := sum(end.num_tokens for end in ends)) else None,
                accuracy=accuracy.accuracy,
                interval=accuracy.interval,
                difference=sum(gaps) / len(gaps),
                difference_interval=difference_interval(gaps, clusters),
            )
        )
    return tuple(points)


def _all_votes(item: Labeled) -> EarlyStop:
    votes = alternate_orders(item.judgment.votes)
    return EarlyStop(majority(votes), tuple(votes))
