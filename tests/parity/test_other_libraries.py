"""Advantages and losses on random, ragged rollouts against verl and torchrl, which share no line with ours.

Both pin other versions of transformers than this project: `make parity` runs this file in an environment of its own. Elsewhere
it is skipped.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardlab.rl import objectives as kl
from rewardlab.rl.advantages import gae, returns_to_go, token_rewards, value_targets, whiten
from rewardlab.rl.groups import centered, leave_one_out, standardized
from rewardlab.rl.objectives import (
    cispo,
    clip_by_sign,
    clipped_value_loss,
    high_covariance,
    mean_of_sequence_means,
    mean_of_tokens,
    ppo_clip,
    sapo,
    sequence_log_ratio,
)

verl = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed; see make parity")


@pytest.fixture(params=range(5))
def rollouts(request: pytest.FixtureRequest) -> SimpleNamespace:
    """24 rollouts of 1 to 11 tokens in groups of four, with rewards of a judge, values, and log-probs old and new."""
    generator = torch.Generator().manual_seed(request.param)
    lengths = torch.randint(1, 12, (24,), generator=generator)
    mask = (torch.arange(11) < lengths[:, None]).float()
    rewards = torch.randint(0, 5, (24,), generator=generator) / 2
    old = -torch.rand(24, 11, generator=generator) * 3
    return SimpleNamespace(
        mask=mask,
        rewards=rewards,
        token_rewards=token_rewards(rewards, mask),
        groups=torch.arange(24) // 4,
        values=torch.randn(24, 11, generator=generator),
        old=old,
        new=old + torch.randn(24, 11, generator=generator) * 0.4,
        ref=old + torch.randn(24, 11, generator=generator) * 0.4,
        advantages=torch.randn(24, 11, generator=generator),
    )


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.float(), b.float(), atol=2e-5, rtol=2e-5)


def test_group_advantages(rollouts: SimpleNamespace) -> None:
    """GRPO with and without the deviation (eps 1e-6 there), and RLOO."""
    index = rollouts.groups.numpy()
    scaled, unscaled = standardized(rollouts.rewards, rollouts.groups, eps=1e-6), centered(rollouts.rewards, rollouts.groups)
    for ours, scale in ((scaled, True), (unscaled, False)):
        theirs, _ = verl.compute_grpo_outcome_advantage(
            rollouts.token_rewards, rollouts.mask, index, norm_adv_by_std_in_grpo=scale
        )
        close(ours[:, None] * rollouts.mask, theirs)
    theirs, _ = verl.compute_rloo_outcome_advantage(rollouts.token_rewards, rollouts.mask, index)
    close(leave_one_out(rollouts.rewards, rollouts.groups)[:, None] * rollouts.mask, theirs)


def test_reinforce_plus_plus(rollouts: SimpleNamespace) -> None:
    """Up to the deviation: theirs is the sample's of all tokens, ours the population's."""
    tokens = rollouts.mask.sum()
    unbiased = ((tokens - 1) / tokens).sqrt()
    theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(
        rollouts.token_rewards, rollouts.mask, config=SimpleNamespace(gamma=1.0)
    )
    close(whiten(returns_to_go(rollouts.token_rewards, rollouts.mask), rollouts.mask) * unbiased, theirs)
    theirs, _ = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(
        rollouts.token_rewards, rollouts.mask, rollouts.groups.numpy()
    )
    baselined = centered(rollouts.rewards, rollouts.groups)[:, None] * rollouts.mask
    close(whiten(baselined, rollouts.mask) * unbiased, theirs)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.5), (1.0, 0.0)])
def test_gae_against_verl(rollouts: SimpleNamespace, gamma: float, lam: float) -> None:
    """Their targets, and their advantages, which come whitened."""
    advantages, targets = verl.compute_gae_advantage_return(
        rollouts.token_rewards, rollouts.values, rollouts.mask, torch.tensor(gamma), torch.tensor(lam)
    )
    ours = gae(rollouts.token_rewards, rollouts.values, rollouts.mask, lam=lam, gamma=gamma)
    tokens = rollouts.mask.sum()
    close(whiten(ours, rollouts.mask) * ((tokens - 1) / tokens).sqrt(), advantages * rollouts.mask)
    targets_of_ours = value_targets(rollouts.token_rewards, rollouts.values, rollouts.mask, lam=lam, gamma=gamma)
    close(targets_of_ours, targets * rollouts.mask)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.9)])
def test_gae_against_torchrl(rollouts: SimpleNamespace, gamma: float, lam: float) -> None:
    """Its estimate of a batch of ended trajectories, each padded with nothing but its end."""
    from torchrl.objectives.value import functional

    ours = gae(rollouts.token_rewards, rollouts.values, rollouts.mask, lam=lam, gamma=gamma)
    for row in range(len(rollouts.mask)):
        length = int(rollouts.mask[row].sum())
        values = rollouts.values[row, :length, None]
        done = torch.zeros(length, 1, dtype=torch.bool)
        done[-1] = True
        after = torch.cat([values[1:], torch.full((1, 1), 123.0)])  # of the state after the end: must not count
        theirs, _ = functional.generalized_advantage_estimate(
            gamma, lam, values, after, rollouts.token_rewards[row, :length, None], done, done
        )
        close(ours[row, :length], theirs[:, 0])


def verl_actor(**changes: Any) -> Any:
    from verl.workers.config import ActorConfig

    values: dict[str, Any] = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "clip_ratio_c": 1e9}
    return ActorConfig(**(values | changes))


@pytest.mark.parametrize("average", [mean_of_tokens, mean_of_sequence_means])
@pytest.mark.parametrize(("low", "high", "dual"), [(0.2, 0.2, None), (0.2, 0.28, None), (0.2, 0.28, 1.5)])
def test_policy_losses(rollouts: SimpleNamespace, average: Any, low: float, high: float, dual: float | None) -> None:
    """Loss and gradient: PPO's clip, the higher and the dual one, averaged by token and by rollout."""
    config = verl_actor(clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual or 1e9)
    mode = "token-mean" if average is mean_of_tokens else "seq-mean-token-mean"
    new = rollouts.new.clone().requires_grad_()
    theirs, _ = verl.compute_policy_loss_vanilla(rollouts.old, new, rollouts.advantages, rollouts.mask, mode, config)
    (their_gradient,) = torch.autograd.grad(theirs, new)
    ours = average(ppo_clip((new - rollouts.old).exp(), rollouts.advantages, low, high, dual), rollouts.mask)
    (our_gradient,) = torch.autograd.grad(ours, new)
    close(ours, theirs)
    close(our_gradient, their_gradient)


def test_sequence_ratio(rollouts: SimpleNamespace) -> None:
    """GSPO in value; its gradient to each token differs by design there (a straight-through form with the same sum)."""
    config = verl_actor(clip_ratio_low=0.2, clip_ratio_high=0.28)
    advantages = rollouts.advantages[:, :1].expand_as(rollouts.mask)
    theirs, _ = verl.compute_policy_loss_gspo(
        rollouts.old, rollouts.new, advantages, rollouts.mask, "seq-mean-token-mean", config
    )
    ratio = sequence_log_ratio(rollouts.new - rollouts.old, rollouts.mask).exp()
    close(mean_of_sequence_means(ppo_clip(ratio, advantages, 0.2, 0.28), rollouts.mask), theirs)


OTHERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sapo": ({"tau_pos": 1.0, "tau_neg": 1.05}, lambda d, new, a, mask: sapo(d.exp(), a, (1.0, 1.05))),
    "cispo": ({"clip_ratio_low": 1.0}, lambda d, new, a, mask: cispo(d.exp(), new, a, 0.28)),  # there without a lower bound
    "geo_mean": ({}, lambda d, new, a, mask: -sequence_log_ratio(clip_by_sign(d, a, 0.2, 0.28), mask).exp() * a),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_objectives(rollouts: SimpleNamespace, name: str) -> None:
    """SAPO, CISPO and GMPO: loss and gradient."""
    keys, objective = OTHERS[name]
    config = verl_actor(**({"clip_ratio_low": 0.2, "clip_ratio_high": 0.28} | keys))
    advantages, new = rollouts.advantages[:, :1].expand_as(rollouts.mask), rollouts.new.clone().requires_grad_()
    loss = getattr(verl, f"compute_policy_loss_{name}")
    theirs, _ = loss(rollouts.old, new, advantages, rollouts.mask, "seq-mean-token-mean", config)
    (their_gradient,) = torch.autograd.grad(theirs, new)
    ours = mean_of_sequence_means(objective(new - rollouts.old, new, advantages, rollouts.mask), rollouts.mask)
    (our_gradient,) = torch.autograd.grad(ours, new)
    close(ours, theirs)
    close(our_gradient, their_gradient)


def test_tokens_of_high_covariance(rollouts: SimpleNamespace) -> None:
    """Clip-Cov where it takes every token within its bounds, and KL-Cov: verl's loss and gradient at ratios above 1, where the
    penalty has a gradient, and equal, as theirs are covariances of the new log-probs. Theirs has no clip beside the penalty."""
    mask, old, advantages = rollouts.mask, rollouts.old, rollouts.advantages * rollouts.mask
    kept = mask > 0
    tokens = torch.stack([advantages[kept], old[kept]])
    policy_loss = {"clip_cov_ratio": 0.9, "clip_cov_lb": 0.5, "clip_cov_ub": 5.0, "kl_cov_ratio": 0.2, "ppo_kl_coef": 0.5}
    config = verl_actor(clip_ratio_low=0.2, clip_ratio_high=0.28)
    for name, value in policy_loss.items():
        object.__setattr__(config.policy_loss, name, value)
    clip, _ = high_covariance(advantages, old, tokens, torch.zeros_like(old), 0.9, (0.5, 5.0))
    _, hold = high_covariance(advantages, old, tokens, torch.zeros_like(old), 0.2, (0.5, 5.0))
    assert 0 < (clip & kept).sum() < kept.sum() / 2
    for loss, ours_of in (
        (verl.compute_policy_loss_clip_cov, lambda d: ppo_clip(d.exp(), advantages * ~clip, 0.2, 0.28)),
        (verl.compute_policy_loss_kl_cov, lambda d: -d.exp() * advantages + 0.5 * hold * d.abs()),
    ):
        new = (old + 0.01).requires_grad_()
        theirs, _ = loss(old, new, advantages, mask, "token-mean", config)
        (their_gradient,) = torch.autograd.grad(theirs, new)
        ours = mean_of_tokens(ours_of(new - old), mask)
        (our_gradient,) = torch.autograd.grad(ours, new)
        close(ours, theirs)
        close(our_gradient, their_gradient)


def test_value_loss(rollouts: SimpleNamespace) -> None:
    """Clipped at 0.2, averaged by token."""
    moved = rollouts.values + rollouts.advantages
    targets = returns_to_go(rollouts.token_rewards, rollouts.mask)
    theirs, _ = verl.compute_value_loss(moved, targets, rollouts.values, rollouts.mask, 0.2)
    close(mean_of_tokens(clipped_value_loss(moved, rollouts.values, targets, 0.2), rollouts.mask), theirs)


@pytest.mark.parametrize(("name", "theirs"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_kl_estimators(rollouts: SimpleNamespace, name: str, theirs: str) -> None:
    """Token by token."""
    close(kl.ESTIMATORS[name](rollouts.new, rollouts.ref), verl.kl_penalty(rollouts.new, rollouts.ref, theirs))
