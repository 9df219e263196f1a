"""The study of guaranteed verdicts: it tells a kept error from one that is not."""

from __future__ import annotations

import math

import pytest

from eval.guarantee import judged_pairs, label_sets, simulated
from rewardlab.types import Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote


def test_our_rule_keeps_the_error_and_the_plain_one_does_not() -> None:
    found = label_sets(simulated("length"), 0.05, sets=60)
    assert found["over"] <= 0.2 < found["plain_over"]
    assert 0.3 < found["coverage"] < found["plain_coverage"]


def test_pairs_are_judged_by_their_margins() -> None:
    """By the probability over both orders; a pair without a verdict in one order has no confidence."""
    done = Completion("", FinishReason.STOP)
    sure = [
        Vote(order, Verdict(choice, VerdictStatus.OK), done, margin)
        for order, choice, margin in ((Order.GIVEN, Choice.FIRST, 2.0), (Order.SWAPPED, Choice.SECOND, -2.0))
    ]
    shares, right, _ = judged_pairs([sure, sure[:1]], [0, 0])
    assert shares[0] == pytest.approx(1 / (1 + math.exp(-2)))
    assert (right.tolist(), bool(shares[1] != shares[1])) == ([True, False], True)
