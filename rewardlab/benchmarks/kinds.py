"""What kinds of judged pairs there are to look at."""

from __future__ import annotations

from rewardlab.metrics.accuracy import VALID
from rewardlab.types import Judgment, Order
from rewardlab.verdicts.votes import in_order, majority

KINDS = {
    "wrong": "not decided for the better response",
    "flipped": "the two orders name different responses",
    "invalid": "an answer without a readable verdict",
    "split": "votes of one order disagree",
    "right": "decided for the better response",
}


def kinds_of(judged: Judgment, preferred: int) -> list[str]:
    """Which of :data:`KINDS` a judged pair is of, in their order; always one of wrong and right."""
    votes = judged.votes
    orders = [in_order(votes, order) for order in Order]
    outcomes = [majority(own) for own in orders]
    named = {outcome for outcome in outcomes if outcome.winner is not None}
    is_right = judged.outcome.winner == preferred
    found = {
        "wrong": not is_right,
        "flipped": len(named) == 2,
        "invalid": any(vote.verdict.status not in VALID for vote in votes),
        "split": any(len({vote.winner for vote in own if vote.winner is not None}) == 2 for own in orders),
        "right": is_right,
    }
    return [name for name, holds in found.items() if holds]
