"""Which response a rollout prefers, and how the consistency judge is queried and read."""

from __future__ import annotations

import pytest

from rewardlab.rewards.consistency import consistency_prompt, read_consistency
from rewardlab.rewards.judgment import RewardParts, winner_of
from rewardlab.types import Choice, VerdictStatus


@pytest.mark.parametrize("status", VerdictStatus)
def test_only_a_verdict_names_a_winner(status: VerdictStatus) -> None:
    """What could not be read names neither response, not the wrong one."""
    for preferred in (0, 1):
        named = winner_of(RewardParts(False, False, 0, status), preferred)
        assert named == (1 - preferred if status is VerdictStatus.OK else None)
        assert winner_of(RewardParts(True, True, 0, VerdictStatus.OK), preferred) == preferred


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
