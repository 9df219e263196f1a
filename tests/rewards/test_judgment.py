"""The reward table, and how the consistency judge is asked and read."""

from __future__ import annotations

from itertools import product

import pytest

from rewardlab.rewards.consistency import consistency_prompt, read_consistency
from rewardlab.rewards.judgment import RewardParts, judgment_reward, winner_of
from rewardlab.types import Choice, VerdictStatus

TABLE = {  # (format, correct, consistency) -> R = 0.5 F + Acc (1 + 0.5 C)
    (True, True, 1): 2.0,
    (True, True, 0): 1.5,
    (True, True, -1): 1.0,
    (False, True, 1): 1.5,
    (False, True, 0): 1.0,
    (False, True, -1): 0.5,
    **{(True, False, c): 0.5 for c in (-1, 0, 1)},
    **{(False, False, c): 0.0 for c in (-1, 0, 1)},
}


@pytest.mark.parametrize(("format_ok", "correct", "consistency"), list(product([True, False], [True, False], [-1, 0, 1])))
def test_reward_table(format_ok: bool, correct: bool, consistency: int) -> None:
    """All twelve cases; consistency is worth nothing where the verdict is wrong."""
    reward = judgment_reward(format_ok=format_ok, correct=correct, consistency=consistency)
    assert reward == TABLE[format_ok, correct, consistency]


@pytest.mark.parametrize("status", VerdictStatus)
def test_only_a_verdict_names_a_winner(status: VerdictStatus) -> None:
    """What could not be read names neither response, not the wrong one."""
    for preferred in (0, 1):
        named = winner_of(RewardParts(False, False, 0, status), preferred)
        assert named == (1 - preferred if status is VerdictStatus.OK else None)
        assert winner_of(RewardParts(True, True, 0, VerdictStatus.OK), preferred) == preferred


def test_other_consistencies_are_refused() -> None:
    """A rating of 2 is a bug of the caller."""
    with pytest.raises(ValueError, match="-1, 0 or \\+1"):
        judgment_reward(format_ok=True, correct=True, consistency=2)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("1", 1),
        (" 0\n", -1),
        ("1.", 1),
        ("", 0),
        ("10", 0),
        ("yes", 0),
        ("-1", 0),
        ("1 or 0", 0),
        ("<think>0?</think>\n1", 1),
        ("<think>1", 0),
    ],
)
def test_reading_the_consistency_judge(answer: str, value: int) -> None:
    """A clear 1 or 0; anything else is no vote."""
    assert read_consistency(answer) == value


def test_the_consistency_judge_sees_question_and_whole_reasoning() -> None:
    """Texts stand as they are, braces and all, and the verdict as shown."""
    prompt = consistency_prompt("Which {number}?", "line 1\nline 2 {question}", Choice.SECOND)
    assert "Which {number}?" in prompt
    assert "line 1\nline 2 {question}" in prompt
    assert "Response 2 is better" in prompt
