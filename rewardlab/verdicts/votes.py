"""From votes to a judgment. Reducers are pure and ignore the order in which votes arrive.

They take the votes *asked*: one without a verdict is a vote for neither response, and stays in the count. A winner needs more
than half of the votes asked. The majority of the valid ones alone, as papers count, is :func:`majority_of_valid`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rewardlab.types import BOTH_ORDERS, Judgment, Order, Outcome, VerdictStatus, Vote

VALID = (VerdictStatus.OK, VerdictStatus.TIE)
FAILED = (VerdictStatus.ERROR, VerdictStatus.TIMEOUT)  # no answer came


def outcome_of(for_0: float, for_1: float, total: float, ties: float = 0.0) -> Outcome:
    """Return the outcome of the weights that each response has, of a ``total`` asked; ``ties`` of it call the pair a tie.

    More than half of what was asked wins. Equal weights are a TIE if at least half was answered; anything else is NO_MAJORITY.
    """
    if 2 * max(for_0, for_1) > total:
        return Outcome.RESPONSE_0 if for_0 > for_1 else Outcome.RESPONSE_1
    return Outcome.TIE if for_0 == for_1 and 2 * (for_0 + for_1 + ties) >= total > 0 else Outcome.NO_MAJORITY


def majority(votes: Sequence[Vote]) -> Outcome:
    """Return the outcome by :func:`outcome_of` of the votes asked; NO_VALID_VOTE if none names a response."""
    for_0, for_1 = _named(votes)
    ties = sum(vote.verdict.status is VerdictStatus.TIE for vote in votes)
    return outcome_of(for_0, for_1, len(votes), ties) if for_0 + for_1 else Outcome.NO_VALID_VOTE


def majority_of_valid(votes: Sequence[Vote]) -> Outcome:
    """Return the outcome of the votes that name a response, however few they are: the rule of most papers."""
    for_0, for_1 = _named(votes)
    return outcome_of(for_0, for_1, for_0 + for_1) if for_0 + for_1 else Outcome.NO_VALID_VOTE


def _named(votes: Sequence[Vote]) -> tuple[int, int]:
    return sum(vote.winner == 0 for vote in votes), sum(vote.winner == 1 for vote in votes)


def enough_valid(votes: Sequence[Vote], left: int = 0) -> bool:
    """Return whether at least half of the votes asked are valid, ties included: of fewer there is no share and no reward. With
    ``left`` more votes to come, return whether at least half can be in the end."""
    total = len(votes) + left
    return total > 0 and 2 * (sum(vote.verdict.status in VALID for vote in votes) + left) >= total


def in_order(votes: Sequence[Vote], order: Order) -> tuple[Vote, ...]:
    return tuple(vote for vote in votes if vote.order is order)


def share_of_valid(votes: Sequence[Vote]) -> float | None:
    """Return the share for response 0 of the votes that name one (0..1), each order weighing the same; None without any."""
    shares = []
    for order in BOTH_ORDERS:
        winners = [vote.winner for vote in in_order(votes, order) if vote.winner is not None]
        if winners:
            shares.append(winners.count(0) / len(winners))
    return sum(shares) / len(shares) if shares else None


def share_for_0(votes: Sequence[Vote]) -> float | None:
    """Return :func:`share_of_valid`; None if fewer than half of the votes asked are valid."""
    return share_of_valid(votes) if enough_valid(votes) else None


def judgment(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair, over the orders they have, by majority."""
    return Judgment(pair_id, tuple(votes), majority(votes), share_for_0(votes))


def _probability_of_valid(votes: Sequence[Vote]) -> tuple[float, float] | None:
    """Return the mean probability of response 0 and the fraction of the votes asked that carry one (0..1)."""
    read: dict[Order, list[float]] = {vote.order: [] for vote in votes}
    for vote in votes:
        if vote.margin is not None:
            read[vote.order].append(vote.margin if vote.order is Order.GIVEN else -vote.margin)
    if not read or not all(read.values()):
        return None
    first, *others = read.values()
    margins = [(a + b) / 2 for a in first for b in others[0]] if others else first
    share = 0.5 + math.fsum(math.tanh(margin / 2) for margin in margins) / (2 * len(margins))
    return share, sum(map(len, read.values())) / len(votes)


def probability_of_0(votes: Sequence[Vote]) -> float | None:
    """Return the probability (0..1) that response 0 is better, by the votes' margins; None if an order has none, or fewer than
    half of the votes asked are valid.

    The mean over every vote of one order with every vote of the other, each two combined by log-odds, (given - swapped) / 2: a
    bias of the verdict's logit cancels exactly (Pairwise-RL, arXiv 2504.04950). Of one order alone, the mean of its votes.
    """
    weighed = _probability_of_valid(votes)
    return weighed[0] if weighed and enough_valid(votes) else None


def judgment_by_probability(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair by the probabilities they carry; a vote without one adds to neither response.

    The winner's mean probability, times the fraction of the votes asked that carry one, is more than one half. Exactly one half
    each is a TIE.
    """
    weighed = _probability_of_valid(votes)
    if weighed is None:
        return Judgment(pair_id, tuple(votes), Outcome.NO_VALID_VOTE, None)
    share, answered = weighed
    outcome = outcome_of(share * answered, (1 - share) * answered, 1)
    return Judgment(pair_id, tuple(votes), outcome, probability_of_0(votes))


def both_orders_or_none(judged: Judgment, orders: Sequence[Order] = BOTH_ORDERS) -> Judgment:
    """Return a judgment as it is if each of ``orders`` has a vote that names a response or carries a probability, else one of
    NO_VALID_VOTE: the votes of one order alone would carry its position bias."""
    named = {vote.order for vote in judged.votes if vote.winner is not None or vote.margin is not None}
    return judged if set(orders) <= named else replace(judged, outcome=Outcome.NO_VALID_VOTE, share_0=None)


def winner_share(judged: Judgment) -> float | None:
    """Return a judgment's confidence in the response that it names: ``share_0`` or 1 - ``share_0`` (0..1), over all rationales
    of both orders; None where it names none, or fewer than half of the votes are valid. Below one half only of a panel."""
    winner, share_0 = judged.outcome.winner, judged.share_0
    return None if winner is None or share_0 is None else share_0 if winner == 0 else 1 - share_0


def reduce_votes(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair as their judge does: by probabilities where they carry any, else by majority."""
    return (
        judgment_by_probability(pair_id, votes) if any(vote.margin is not None for vote in votes) else judgment(pair_id, votes)
    )
