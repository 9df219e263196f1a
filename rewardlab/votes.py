"""From votes to a judgment. Reducers are pure and ignore the order in which votes arrive."""

from __future__ import annotations

from collections.abc import Sequence

from rewardlab.types import BOTH_ORDERS, Judgment, Order, Outcome, Vote


def majority(votes: Sequence[Vote]) -> Outcome:
    """More than half of the *valid* votes win.

    Equal numbers are a TIE, which names no winner and is never counted as right; without a valid vote the outcome is
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
    """Share of valid votes for response 0 (0..1), each order asked weighing the same; None without a valid vote."""
    shares = []
    for order in BOTH_ORDERS:
        winners = [vote.winner for vote in in_order(votes, order) if vote.winner is not None]
        if winners:
            shares.append(winners.count(0) / len(winners))
    return sum(shares) / len(shares) if shares else None


def judgment(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce all votes on a pair, over whatever orders were asked, by majority."""
    return Judgment(pair_id, tuple(votes), majority(votes), share_for_0(votes))
