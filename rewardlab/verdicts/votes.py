"""From votes to a judgment. Reducers are pure and ignore the order in which votes arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rewardlab.types import BOTH_ORDERS, Judgment, Order, Outcome, Vote


def majority(votes: Sequence[Vote]) -> Outcome:
    """Return the outcome: more than half of the *valid* votes win.

    Equal numbers are a TIE, which names no winner and is never counted as correct; without a valid vote the outcome is
    NO_VALID_VOTE. No coin is flipped.
    """
    for_0 = sum(vote.winner == 0 for vote in votes)
    for_1 = sum(vote.winner == 1 for vote in votes)
    if for_0 + for_1 == 0:
        return Outcome.NO_VALID_VOTE
    if for_0 == for_1:
        return Outcome.TIE
    return Outcome.RESPONSE_0 if for_0 > for_1 else Outcome.RESPONSE_1


def in_order(votes: Sequence[Vote], order: Order) -> tuple[Vote, ...]:
    return tuple(vote for vote in votes if vote.order is order)


def share_for_0(votes: Sequence[Vote]) -> float | None:
    """Return the share of valid votes for response 0 (0..1), each order weighing the same; None without a valid vote."""
    shares = []
    for order in BOTH_ORDERS:
        winners = [vote.winner for vote in in_order(votes, order) if vote.winner is not None]
        if winners:
            shares.append(winners.count(0) / len(winners))
    return sum(shares) / len(shares) if shares else None


def judgment(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair, over the orders they have, by majority."""
    return Judgment(pair_id, tuple(votes), majority(votes), share_for_0(votes))


def probability_of_0(votes: Sequence[Vote]) -> float | None:
    """Return the probability (0..1) that response 0 is better, by the votes' margins; None if an order has none.

    The mean over every vote of one order with every vote of the other, each two combined by log-odds, (given - swapped) / 2: a
    bias of the verdict's logit cancels exactly (Pairwise-RL, arXiv 2504.04950). Of one order alone, the mean of its votes.
    """
    read: dict[Order, list[float]] = {vote.order: [] for vote in votes}
    for vote in votes:
        if vote.margin is not None:
            read[vote.order].append(vote.margin if vote.order is Order.GIVEN else -vote.margin)
    if not read or not all(read.values()):
        return None
    first, *others = read.values()
    margins = [(a + b) / 2 for a in first for b in others[0]] if others else first
    return 0.5 + math.fsum(math.tanh(margin / 2) for margin in margins) / (2 * len(margins))


def judgment_by_probability(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair by the probabilities they carry; exactly one half is a TIE."""
    share = probability_of_0(votes)
    if share is None:
        return Judgment(pair_id, tuple(votes), Outcome.NO_VALID_VOTE, None)
    outcome = Outcome.TIE if share == 0.5 else Outcome.RESPONSE_0 if share > 0.5 else Outcome.RESPONSE_1
    return Judgment(pair_id, tuple(votes), outcome, share)


def both_orders_or_none(judged: Judgment, orders: Sequence[Order] = BOTH_ORDERS) -> Judgment:
    """Return a judgment as it is if each of ``orders`` has a valid vote, else one without outcome: the votes of one order alone
    would carry its position bias."""
    valid = {vote.order for vote in judged.votes if vote.winner is not None or vote.margin is not None}
    return judged if set(orders) <= valid else replace(judged, outcome=Outcome.NO_VALID_VOTE, share_0=None)


def reduce_votes(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair as their judge does: by probabilities where they carry any, else by majority."""
    return (
        judgment_by_probability(pair_id, votes) if any(vote.margin is not None for vote in votes) else judgment(pair_id, votes)
    )
