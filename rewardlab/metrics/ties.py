"""Ties as labels: accuracy in three classes, and how often the two orders disagree on pairs that people call a tie. Pure.

A judge of pairs names one response, so that it says tie in two ways: the majorities of its two orders name different
responses, or an order has no majority (its votes are even, or call the pair a tie). An order of which fewer than half of
the votes are valid has no answer, and then the pair has none: it is wrong in every class, and no tie. In one order alone
the judge says what that order says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.metrics.accuracy import Labeled
from rewardlab.metrics.intervals import AccuracyEstimate, mean_estimate, mean_interval
from rewardlab.metrics.revision import ShareEstimate
from rewardlab.types import BOTH_ORDERS, Judgment, Outcome, Vote
from rewardlab.verdicts.votes import enough_valid, in_order, majority


@dataclass(frozen=True)
class TieScores:
    """Scores of ``num_pairs``, of which ``num_ties`` are ties, ``num_both_bad`` of these since both are bad.

    ``three_way``: accuracy over all pairs in three classes, response 0, response 1 and tie. ``num_unanswered`` pairs have no
    answer and are wrong. ``disagreement``: of the ties whose two orders each name a response, the fraction that name
    different ones; None if there are none.
    """

    num_pairs: int
    num_ties: int
    num_both_bad: int
    num_unanswered: int
    three_way: AccuracyEstimate
    disagreement: ShareEstimate | None


def order_outcomes(votes: Sequence[Vote]) -> list[Outcome]:
    """Return the outcome of each order that was asked: a response, TIE, or NO_VALID_VOTE."""
    outcomes = []
    for of_order in filter(None, (in_order(votes, order) for order in BOTH_ORDERS)):
        outcome = majority(of_order)
        tied = Outcome.TIE if enough_valid(of_order) else Outcome.NO_VALID_VOTE
        outcomes.append(outcome if outcome.winner is not None else tied)
    return outcomes


def three_way_outcome(votes: Sequence[Vote]) -> Outcome:
    """Return what a judge says of a pair in three classes; NO_VALID_VOTE if an order has no answer."""
    outcomes = order_outcomes(votes)
    if not outcomes or Outcome.NO_VALID_VOTE in outcomes:
        return Outcome.NO_VALID_VOTE
    return outcomes[0] if len(set(outcomes)) == 1 else Outcome.TIE


def orders_differ(votes: Sequence[Vote]) -> bool | None:
    """Return whether the two orders name different responses; None unless each names one."""
    winners = [outcome.winner for outcome in order_outcomes(votes)]
    return None if len(winners) < len(BOTH_ORDERS) or None in winners else winners[0] != winners[1]


def tie_scores(
    labelled: Sequence[Labeled],
    clusters: Sequence[str],
    tied: Sequence[Judgment],
    tied_clusters: Sequence[str],
    num_both_bad: int,
) -> TieScores:
    """Return the scores of pairs with a better response and of at least one tie, each with its cluster."""
    outcomes = [three_way_outcome(item.judgment.votes) for item in labelled]
    tied_outcomes = [three_way_outcome(judgment.votes) for judgment in tied]
    right = [outcome.winner == item.preferred for outcome, item in zip(outcomes, labelled, strict=True)]
    right += [outcome is Outcome.TIE for outcome in tied_outcomes]
    flips = [orders_differ(judgment.votes) for judgment in tied]
    named = [n for n, flip in enumerate(flips) if flip is not None]
    differ = [float(flips[n] or 0) for n in named]
    interval = mean_interval(differ, [tied_clusters[n] for n in named])
    return TieScores(
        num_pairs=len(right),
        num_ties=len(tied),
        num_both_bad=num_both_bad,
        num_unanswered=[*outcomes, *tied_outcomes].count(Outcome.NO_VALID_VOTE),
        three_way=mean_estimate([float(flag) for flag in right], [*clusters, *tied_clusters]),
        disagreement=ShareEstimate(len(named), sum(differ) / len(differ), interval) if named else None,
    )
