"""The clipped objective against arithmetic on paper and against trl's own."""

from __future__ import annotations

import math

import pytest
import torch

from rewardlab.rl.objectives import mean_of_sequence_means, outside, ppo_clip, preclip

BOUNDS = (1e-3, 1e3)


@pytest.mark.parametrize(
    ("log_ratio", "ratio"), [(0.0, 1.0), (1.0, math.e), (-6.0, math.exp(-6)), (6.9, math.exp(6.9)), (8.0, 1e3), (-8.0, 1e-3)]
)
def test_preclip_bounds_the_ratio(log_ratio: float, ratio: float) -> None:
    """Identity inside [ln 1e-3, ln 1e3], the bound outside."""
    new = torch.tensor([[-1.0 + log_ratio]])
    assert preclip(new, torch.tensor([[-1.0]]), BOUNDS).exp().item() == pytest.approx(ratio, rel=1e-4)


def test_preclip_keeps_a_far_policy_finite() -> None:
    """exp(200) overflows float32; pre-clipped, loss and gradient are finite, and the clamped token's gradient is 0."""
    new = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-201.0, -1.5]])
    assert (new - old).exp().isinf().any()
    loss = ppo_clip(preclip(new, old, BOUNDS).exp(), torch.tensor([[-1.0, -1.0]]), 0.2).sum()
    loss.backward()
    assert loss.item() == pytest.approx(1000 + math.exp(0.5), rel=1e-4)
    assert new.grad is not None
    assert new.grad.tolist() == [[0.0, pytest.approx(math.exp(0.5))]]
    assert outside(new.detach(), old, torch.ones(1, 2), BOUNDS) == 0.5
    assert outside(new.detach(), old, torch.tensor([[0, 1]]), BOUNDS) == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.5, 2.0, -2.4),  # good, already much likelier: no more pull than 1.2
        (1.5, -2.0, 3.0),  # bad and likelier: full push
        (0.5, 2.0, -1.0),  # good and unlikelier: full pull
        (0.5, -2.0, 1.6),  # bad, already much unlikelier: no more push than 0.8
        (1.1, 2.0, -2.2),
    ],
)
def test_ppo_clip(ratio: float, advantage: float, loss: float) -> None:
    """Equation 7 of the PPO paper, each of its cases."""
    assert ppo_clip(torch.tensor(ratio), torch.tensor(advantage), 0.2).item() == pytest.approx(loss)


def test_every_rollout_weighs_the_same() -> None:
    """A rollout of one token and one of three."""
    values = torch.tensor([[4.0, 9, 9], [1.0, 2, 3]])
    assert mean_of_sequence_means(values, torch.tensor([[1, 0, 0], [1, 1, 1]])).item() == 3.0
