"""What is logged of a critic: explained variance of returns whatever its lambda, and advantages by position within rollouts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rewardlab.config import Method
from rewardlab.rl.advantages import explained_variance
from rewardlab.training.policy_gradient.algorithm import Rewards, _by_position, compute_advantages
from rewardlab.training.policy_gradient.batch import RolloutBatch


def batch_of(lengths: list[int]) -> RolloutBatch:
    places = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    mask, prompts = places.long(), torch.ones(len(lengths), 1, dtype=torch.long)
    return RolloutBatch(prompts, prompts, mask, mask, mask, {}, finished_N=torch.ones(len(lengths), dtype=torch.long))


@pytest.mark.parametrize("lam", [1.0, 0.95, 0.5])
def test_explained_variance_is_that_of_returns(lam: float) -> None:
    """The critic's targets at a lambda below 1 hold its own values: these would explain themselves."""
    batch, generator = batch_of([3, 9, 6, 5]), torch.Generator().manual_seed(0)
    rewards_G = torch.tensor([0.0, 1.0, 1.0, 0.0])
    mask_NT = batch.completion_mask_NT.float()
    values_NT = torch.rand(4, 9, generator=generator) * mask_NT
    method = Method(advantage="gae", gae_lambda=lam, gae_lambda_critic=lam)
    outputs = compute_advantages(
        batch, Rewards(rewards_G, slice(0, 4)), method, sum_processes=lambda tensor: tensor, values_NT=values_NT
    )
    returns_NT = rewards_G[:, None] * mask_NT
    expected = explained_variance(values_NT, returns_NT, mask_NT)
    assert outputs.metrics["value/explained_variance"].value == pytest.approx(expected, abs=1e-5)


def positions(advantages: list[list[float]]) -> dict[str, float]:
    lengths = [len(row) for row in advantages]
    batch, total = batch_of(lengths), max(lengths)
    advantages_NT = torch.tensor([[*row, *[0.0] * (total - len(row))] for row in advantages])
    mask_NT: Tensor = batch.loss_mask_NT
    return {name: m.value for name, m in _by_position(advantages_NT, advantages_NT, batch.segments, mask_NT).items()}


def test_rollouts_of_one_advantage_have_no_position_bias() -> None:
    """However their lengths differ: the first tenth of each has as many tokens as its last."""
    assert positions([[0.5] * 30, [-2.0] * 8])["advantage/position_bias"] == pytest.approx(0.0, abs=1e-6)
    assert positions([[0.3], [0.1, 0.1]])["advantage/position_bias"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("length", [2, 8, 10, 13, 27])
def test_the_tenths_of_a_rollout(length: int) -> None:
    """Advantages that are their token's place: the mean of the first ceil(n / 10) and of the last."""
    count = -(-length // 10)
    found = positions([[float(place) for place in range(length)]])
    assert found["advantage/first_tenth"] == pytest.approx((count - 1) / 2)
    assert found["advantage/position_bias"] == pytest.approx(length - count)
