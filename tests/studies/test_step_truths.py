"""The demonstration's answer key to steps: true of the true picture, false from where the other's begins."""

from __future__ import annotations

import random
from typing import Any

from eval.step_truths import first_wrong, spoil_judgment, steps_of, truth_of_steps
from rewardlab.demo.judgments import grounded_judgment
from rewardlab.rewards.steps import judgment_steps
from rewardlab.types import BOTH_ORDERS, Choice, choice_of
from rewardlab.verdicts.parse import parse_verdict


def test_careful_judgments_are_true_and_misread_ones_false(demo_pairs: Any) -> None:
    """Every task, both orders; of a misread one, every check of a response, for each calls the true one wrong."""
    for pair, truth in zip(*demo_pairs, strict=True):
        for order in BOTH_ORDERS:
            responses = pair.shown(order)
            kinds = []
            for misread in (False, True):
                text = grounded_judgment(truth, responses, misread=misread)[0]
                kinds.append(truth_of_steps(steps_of(text, judgment_steps(text)), truth, responses))
            assert set(kinds[0]) == {"true"}
            assert kinds[1][-2:] == ["false", "false"]
            assert first_wrong(kinds[0]) is None
            assert first_wrong(kinds[1]) is not None


def test_praise_and_strange_steps(demo_pairs: Any) -> None:
    pair, truth = demo_pairs[0][0], demo_pairs[1][0]
    responses = pair.shown(BOTH_ORDERS[0])
    right = "1" if choice_of(pair.preferred, BOTH_ORDERS[0]) is Choice.FIRST else "2"
    steps = [f"Response {right} reads better.", f"Response {3 - int(right)} is clearer.", "Who knows."]
    assert truth_of_steps(steps, truth, responses) == ["praise_right", "praise_wrong", "unknown"]
    assert first_wrong(["true", "praise_right", "unknown", "praise_wrong", "false"]) == 4


def test_spoiled_judgments(demo_pairs: Any) -> None:
    """Wrong at the step drawn, true before it; every place is drawn; the verdict is the wrong one."""
    rng, places = random.Random(0), set()
    for pair, truth in zip(*demo_pairs, strict=True):
        for order in BOTH_ORDERS:
            if (bad := spoil_judgment(pair, truth, order, rng)) is not None:
                kinds = truth_of_steps(steps_of(bad.judgment, judgment_steps(bad.judgment)), truth, pair.shown(order))
                places.add(first_wrong(kinds))
                assert parse_verdict(bad.judgment, "think_answer").choice is choice_of(1 - pair.preferred, order)
                assert bad.order is order
    assert places >= {1, 2, 3, 4}
