"""The study of alarms: a shift that shows comes before the error passes its bound, and one that does not is never seen."""

from __future__ import annotations

import random

import numpy as np

from eval.drift import Judged, new_stream, shifted
from rewardlab.types import Choice, Completion, FinishReason, Judgment, Order, Outcome, Verdict, VerdictStatus, Vote

VOTES = tuple(
    Vote(order, Verdict(choice, VerdictStatus.OK), Completion("so it is", FinishReason.STOP, 3, 30))
    for order, choice in ((Order.GIVEN, Choice.FIRST), (Order.SWAPPED, Choice.SECOND))
)


def judged(low: float, error: float) -> Judged:
    """200 judgments with confidences of ``low`` to 1, all given, of which a fraction ``error`` is wrong."""
    dice = random.Random(0)
    shares = [dice.uniform(low, 1) for _ in range(200)]
    right = np.array([dice.random() >= error for _ in shares])
    return Judged([Judgment("", VOTES, Outcome.RESPONSE_0, share) for share in shares], right, 0.5)


def test_what_shows_is_seen_in_time() -> None:
    run, dice = judged(0.8, 0.02), np.random.default_rng(0)
    streams = [new_stream(run, 200, dice) for _ in range(6)]
    seen = shifted(streams, run, judged(0.55, 0.2), 400, 1.0, dice)
    assert (seen["before_passed"], seen["kinds"]) == (1.0, {"confidence": 6})
    assert 0 < seen["alarms"][1] < seen["passed"][1] < seen["significant"][1]
    unseen = shifted(streams, run, judged(0.8, 0.2), 400, 1.0, dice)
    assert (unseen["before_passed"], unseen["kinds"]) == (0.0, {})
