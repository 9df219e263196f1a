"""What kinds of judged pairs there are to look at."""

from __future__ import annotations

from rewardlab.types import Judgment, Order
from rewardlab.verdicts.votes import VALID, in_order, majority

KINDS = {
    "wrong": "not decided for the better response",
    "flipped": "the two orders name different responses",
    "invalid": "an answer without a readable verdict",
    "split": "votes of one order disagree",
    "right": "decided for the better response",
}


def kinds_of(judgment: Judgment, preferred: int) -> list[str]:
    """Return which of :data:`KINDS` a judged pair is of, in their order; always one of wrong and right."""
    votes = judgment.votes
    orders = [in_order(votes, order) for order in Order]
    outcomes = {majority(order_votes) for order_votes in orders}
    decided = {outcome for outcome in outcomes if outcome.winner is not None}
    is_right = judgment.outcome.winner == preferred
    holds = {
        "wrong": not is_right,
        "flipped": len(decided) == 2,
        "invalid": any(vote.verdict.status not in VALID for vote in votes),
        "split": any(len({vote.winner for vote in order_votes if vote.winner is not None}) == 2 for order_votes in orders),
        "right": is_right,
    }
    return [name for name, is_so in holds.items() if is_so]
