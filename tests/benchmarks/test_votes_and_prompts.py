"""Votes weighed in blocks of K, and prompts of which every pair is right, worked by hand."""

from __future__ import annotations

import pytest

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.scores import all_right, weighted_score
from rewardlab.metrics.accuracy import Labeled
from rewardlab.types import Completion, FinishReason, Order, PreferencePair, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.votes import judgment_by_probability


def weighed(margins_for_0: list[float]) -> Labeled:
    """Votes for response 0 by these log-odds in both orders; response 0 is the better one."""
    tie, done = Verdict(None, VerdictStatus.TIE), Completion("", FinishReason.STOP)
    votes = [Vote(order, tie, done, m if order is Order.GIVEN else -m) for order in Order for m in margins_for_0]
    return Labeled(judgment_by_probability("p", votes), 0, "all")


@pytest.mark.parametrize(("k", "score"), [(1, 0.6), (2, 0.5), (3, 1.0), (4, 1.0), (5, 1.0)])
def test_blocks_are_whole(k: int, score: float) -> None:
    """Five votes in each order, three for the better response: blocks of three are one, and the two left over are in none."""
    assert weighted_score(weighed([1.0, 1.0, 1.0, -1.0, -1.0]), k) == score
    assert weighted_score(weighed([1.0, 1.0, 1.0, -9.0, -9.0]), 3) == 1.0


def test_a_prompt_is_right_where_every_pair_is_in_both_orders() -> None:
    """Acc+ of four prompts: one right throughout, one with a pair that is right in one order only, one with a wrong pair, one
    whose one pair is right: 2 of 4."""
    scores = {"all": (1.0, 1.0), "one order": (1.0, 0.5), "wrong": (0.0, 1.0), "alone": (1.0,)}
    prompts = [(prompt, score) for prompt, of_prompt in scores.items() for score in of_prompt]
    rows = [Row(n, PreferencePair(f"p{n}", "Q", ("a", "b"), 0), "all", prompt, {}) for n, (prompt, _) in enumerate(prompts)]
    found = all_right(rows, [score for _, score in prompts])
    assert found is not None
    assert (found.accuracy, found.n) == (2 / 4, 4)
