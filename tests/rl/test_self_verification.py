"""What each turn of a verified judgment earns, and that no turn's reward reaches another."""

from __future__ import annotations

import pytest
import torch

from rewardlab.rl.advantages import gae, whiten
from rewardlab.rl.self_verification import at_turn_ends, segments, turn_rewards


def test_what_each_turn_earns() -> None:
    """The paper's cases, rewards 0 and 1: wrong to right 0, 1, 2; right to wrong 1, 0, -1; right and kept 1, 1; unclear 0."""
    rewards = turn_rewards([0, 1, 1, 0], [False, True, True, False], [False, False, True, None], [1, 0, None, None])
    assert rewards.tolist() == [[0, 1, 2], [1, 0, -1], [1, 1, 0], [0, 0, 0]]
    assert rewards.dtype is torch.float32
    assert turn_rewards([0], [False], [False], [1], bonus=0.0).tolist() == [[0, 1, 1]]


# A judgment of 2 tokens, 2 of the user's, a verification of 3, 1 of the user's, a revision of 2; and one without the last.
TURNS = torch.tensor([[1, 1, 0, 0, 2, 2, 2, 0, 3, 3], [1, 1, 0, 0, 2, 2, 0, 0, 0, 0]])


def test_rewards_stand_at_the_end_of_their_turn() -> None:
    at = at_turn_ends(torch.tensor([[0.5, 1.0, 2.0], [1.5, 0.25, 0.0]]), TURNS)
    assert at.tolist() == [[0, 0.5, 0, 0, 0, 0, 1.0, 0, 0, 2.0], [0, 1.5, 0, 0, 0, 0.25, 0, 0, 0, 0]]


def by_turn(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return sum(gae(at_turn_ends(rewards, TURNS), values, part, lam=0.9) for part in segments(TURNS))  # type: ignore[return-value]


def test_no_reward_reaches_another_turn() -> None:
    """Another reward for the verification changes the advantages of the verification, and of nothing else."""
    values = torch.randn(2, 10, generator=torch.Generator().manual_seed(0))
    before = by_turn(torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), values)
    after = by_turn(torch.tensor([[1.0, 5.0, 1.0], [1.0, 5.0, 0.0]]), values)
    changed = (before != after) & (TURNS != 2)
    assert not changed.any()
    assert ((before != after) == (TURNS == 2)).all()
    assert not before[TURNS == 0].any()


def test_roles_are_whitened_apart() -> None:
    """Mean 0 and deviation 1 within each role, though one has ten times the tokens and a hundred times the spread."""
    values = torch.randn(4, 44, generator=torch.Generator().manual_seed(0))
    verifying = torch.zeros(4, 44)
    verifying[:, 40:] = 1
    values = torch.where(verifying > 0, 100 * values + 7, values)
    for mask in (verifying, 1 - verifying):
        own = whiten(values, mask)[mask > 0]
        assert own.mean().item() == pytest.approx(0, abs=1e-6)
        assert own.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_turns_side_by_side_end_apart() -> None:
    """Also without a user's tokens between them; a turn's end is its last token, where its mask ends."""
    turns = torch.tensor([[1, 2, 2, 3, 0]], dtype=torch.int32)
    assert at_turn_ends(torch.tensor([[0.5, 1.0, 2.0]]), turns).tolist() == [[0.5, 0, 1.0, 2.0, 0]]
    masks = segments(turns)
    assert [mask.tolist() for mask in masks] == [[[1, 0, 0, 0, 0]], [[0, 1, 1, 0, 0]], [[0, 0, 0, 1, 0]]]
    assert {mask.dtype for mask in masks} == {torch.int32}


@pytest.mark.parametrize("short", range(4))
def test_a_turn_that_is_missing_is_no_turn_of_another(short: int) -> None:
    columns: list[list[float]] = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    columns[short].pop()
    with pytest.raises(ValueError, match="argument"):
        turn_rewards(*columns)  # type: ignore[arg-type]
