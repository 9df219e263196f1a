"""Laws of the policy gradient that hold for any rollouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rewardlab.rl.advantages import filter_outliers, returns_to_go, token_rewards, whiten
from rewardlab.rl.objectives import mean_of_sequence_means, ppo_clip, preclip

BOUNDS = (1e-3, 1e3)
seeds = st.integers(0, 10_000)


def rollouts(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards [8], mask [8, 6], old log-probs [8, 6] of rollouts of 1 to 6 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (8,), generator=generator)
    mask = (torch.arange(6) < lengths[:, None]).float()
    rewards = torch.randint(0, 5, (8,), generator=generator) / 2
    return rewards, mask, -torch.rand(8, 6, generator=generator)


def advantages(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return whiten(returns_to_go(token_rewards(rewards, mask), mask), mask)


@given(seeds, st.floats(-10, 10), st.floats(0.1, 10))
def test_shift_and_scale_of_the_reward_do_not_matter(seed: int, shift: float, scale: float) -> None:
    """Whitened advantages are the same, as long as anything varies."""
    rewards, mask, _ = rollouts(seed)
    torch.testing.assert_close(advantages(rewards * scale + shift, mask), advantages(rewards, mask), atol=2e-4, rtol=2e-4)


@given(seeds)
def test_whitened_advantages_have_mean_0_and_deviation_1(seed: int) -> None:
    """Over tokens, unless all are zero."""
    rewards, mask, _ = rollouts(seed)
    tokens = advantages(rewards, mask)[mask > 0]
    assume(tokens.any())
    assert tokens.mean().item() == pytest.approx(0, abs=1e-5)
    assert tokens.std(correction=0).item() == pytest.approx(1, abs=1e-5)


@given(seeds, st.floats(0.5, 3))
def test_the_filter_only_sets_to_zero(seed: int, sigma: float) -> None:
    """What is inside is untouched, what is outside is zero, and the shares it reports are those."""
    rewards, mask, _ = rollouts(seed)
    before = advantages(rewards, mask)
    after, metrics = filter_outliers(before, mask, sigma)
    outside = before.abs() > sigma
    assert torch.equal(after, before.masked_fill(outside, 0))
    assert metrics["advantage/outlier_frac"] == pytest.approx((outside & (mask > 0)).sum().item() / mask.sum().item())


def gradient(logprobs: torch.Tensor, old: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logprobs = logprobs.clone().requires_grad_()
    ratio = preclip(logprobs, old, BOUNDS).exp()
    mean_of_sequence_means(ppo_clip(ratio, advantages(rewards, mask), 0.2), mask).backward()
    assert logprobs.grad is not None
    return logprobs.grad


@given(seeds)
def test_at_ratio_one_it_is_reinforce(seed: int) -> None:
    """The gradient of the clipped objective is that of -A log p, over the rollout's length and their number."""
    rewards, mask, old = rollouts(seed)
    expected = -advantages(rewards, mask) * mask / mask.sum(1, keepdim=True) / len(mask)
    torch.testing.assert_close(gradient(old, old, rewards, mask), expected, atol=1e-6, rtol=1e-5)


@given(seeds)
def test_masked_tokens_get_no_gradient(seed: int) -> None:
    """Whatever stands in the padding."""
    rewards, mask, old = rollouts(seed)
    found = gradient(old + 100 * (1 - mask), old, rewards, mask)
    assert not found[mask == 0].any()
