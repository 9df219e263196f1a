"""Labeled judgments written as marks."""

from __future__ import annotations

from rewardlab.metrics.accuracy import Labeled
from rewardlab.types import Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.votes import judgment

MARKS = {"1": (Choice.FIRST, VerdictStatus.OK), "2": (Choice.SECOND, VerdictStatus.OK), "-": (None, VerdictStatus.NO_VERDICT)}
MARKS["="] = (None, VerdictStatus.TIE)


def labeled(given: str, swapped: str = "", *, preferred: int = 0, group: str = "all") -> Labeled:
    """Votes as one mark each, as shown: 1, 2, = (tie) or - (unreadable)."""
    done = Completion("", FinishReason.STOP)
    votes = [
        Vote(order, Verdict(*MARKS[mark]), done) for order, marks in zip(Order, (given, swapped), strict=True) for mark in marks
    ]
    return Labeled(judgment("p", votes), preferred, group)
