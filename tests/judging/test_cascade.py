"""A cascade: which tier decides, what it costs, and that votes add up."""

from __future__ import annotations

import pytest

from rewardlab.judging.cascade import CascadeTier, compare_in_tiers
from rewardlab.types import Message, PreferencePair
from tests.support.serving import judge_of

PAIRS = [PreferencePair(name, f"{name}?", ("yes", "no"), 0) for name in ("easy", "hard", "silent")]


def wavers(prompt: tuple[Message, ...], draw: int) -> str:
    """For "yes", but in every second draw on a hard pair for the first shown; nothing on a silent one."""
    text = prompt[0].text
    if "silent" in text:
        return "?"
    yes = "1" if text.find("yes") < text.find("no") else "2"
    return f"<answer>{'1' if 'hard' in text and draw % 2 == 0 else yes}</answer>"


def test_only_unsure_pairs_go_on() -> None:
    judge = judge_of(wavers)
    easy, hard, silent = compare_in_tiers([CascadeTier(judge, 1, 0.9), CascadeTier(judge, 4)], PAIRS)
    assert [(one.tier, one.num_samples) for one in (easy, hard, silent)] == [(0, 2), (1, 8), (1, 8)]
    assert easy.judgment == judge.compare(PAIRS[0])
    assert (easy.judgment.outcome.winner, silent.judgment.outcome.winner) == (0, None)
    assert len(hard.judgment.votes) == 8
    other = judge_of(wavers)
    assert [one.num_samples for one in compare_in_tiers([CascadeTier(judge, 1, 0.9), CascadeTier(other, 4)], PAIRS)] == [
        2,
        10,
        10,
    ]


def test_tiers_that_add_nothing_are_refused() -> None:
    judge = judge_of(wavers)
    with pytest.raises(ValueError, match="one tier or more"):
        compare_in_tiers([], PAIRS)
    with pytest.raises(ValueError, match="expected more than 2"):
        compare_in_tiers([CascadeTier(judge, 2, 0.9), CascadeTier(judge, 2)], PAIRS)
