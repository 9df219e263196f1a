"""Whatever is made on the way is made where the inputs are: here with a default device that holds no numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardlab.rl.advantages import (
    Moments,
    explained_variance,
    filter_outliers,
    gae,
    length_adaptive_lambda,
    returns_to_go,
    token_rewards,
    value_targets,
    weights,
    whiten,
)
from rewardlab.rl.groups import (
    fill_unscored,
    leave_one_out,
    standardized,
    varying_frac,
)
from rewardlab.rl.objectives import (
    cispo,
    clip_by_sign,
    importance_weights,
    mean_of_sequence_means,
    ppo_clip,
    preclip,
    sapo,
    top_bound,
)
from rewardlab.rl.selection import difficulty_weights, overlong_penalty
from rewardlab.rl.self_verification import at_turn_ends, segments

GENERATOR = torch.Generator().manual_seed(0)
A_NT, B_NT = torch.rand(4, 5, generator=GENERATOR), torch.rand(4, 5, generator=GENERATOR)
LENGTHS_N = torch.tensor([5, 3, 1, 4])
MASK_NT = (torch.arange(5) < LENGTHS_N[:, None]).float()
TURNS_NT = torch.tensor([[1, 1, 0, 2, 3]] * 4)
REWARDS_N, GROUPS_N = torch.tensor([1.0, 0.0, 0.5, 1.0]), torch.tensor([0, 0, 1, 1])
CUT_N = torch.tensor([True, False, True, False])


@pytest.mark.parametrize(
    "function",
    [
        lambda: token_rewards(REWARDS_N, MASK_NT, A_NT, 0.1),
        lambda: whiten(returns_to_go(A_NT, MASK_NT), MASK_NT, Moments.of(A_NT, weights(MASK_NT, "sequence"))),
        lambda: whiten(torch.ones(4, 5, device="cpu"), MASK_NT),
        lambda: filter_outliers(A_NT - B_NT, MASK_NT, 0.5)[0],
        lambda: gae(A_NT, B_NT, MASK_NT, lam=0.9),
        lambda: gae(A_NT, B_NT, MASK_NT, lam=length_adaptive_lambda(LENGTHS_N, alpha=0.5), finished_N=CUT_N),
        lambda: value_targets(A_NT, B_NT, MASK_NT),
        lambda: explained_variance(A_NT, B_NT, MASK_NT),
        lambda: standardized(fill_unscored(REWARDS_N, GROUPS_N), GROUPS_N),
        lambda: leave_one_out(REWARDS_N, GROUPS_N),
        lambda: varying_frac(REWARDS_N, GROUPS_N),
        lambda: cispo(A_NT, B_NT, A_NT, 0.2) + sapo(A_NT, B_NT - 0.5, (1.0, 1.05)) + clip_by_sign(A_NT, B_NT, 0.1, 0.2),
        lambda: top_bound(A_NT.flatten(), 0.2),
        lambda: mean_of_sequence_means(ppo_clip(preclip(A_NT, B_NT, (0.5, 2.0)).exp(), B_NT, 0.2), MASK_NT),
        lambda: importance_weights(A_NT, B_NT, MASK_NT, "sequence_mask", cap=1.5, veto=0.1)[0],
        lambda: difficulty_weights(REWARDS_N),
        lambda: overlong_penalty(LENGTHS_N, longest=4, margin=2),
        lambda: at_turn_ends(A_NT[:, :3], TURNS_NT),
        lambda: torch.stack(segments(TURNS_NT)),
    ],
)
def test_tensors_are_made_beside_their_inputs(function: Callable[[], Tensor | float]) -> None:
    expected = function()
    with torch.device("meta"):
        found = function()
    if isinstance(found, Tensor):
        assert found.device == torch.device("cpu")
    torch.testing.assert_close(found, expected)


def test_the_turns_rewards_follow_the_turns() -> None:
    assert at_turn_ends(A_NT[:, :3], TURNS_NT.to("meta")).device == torch.device("meta")
