"""One whole StableReinforce step in plain torch, top to bottom, to be read first.

``training/stable_reinforce.py`` does the same on TRL's trainer; a test holds the two equal in loss, gradient and weights
over several minibatches and epochs. Nothing here is shared with the code it checks, on purpose.

Shapes: ``N`` rollouts in the batch, ``M`` in a minibatch, ``T`` completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rollouts:
    """What one sampling left: ``mask_NT`` is 1 on generated tokens, ``rewards_N`` one reward per rollout.

    ``old_logprobs_NT`` are of the policy that sampled, ``ref_logprobs_NT`` of the frozen reference (None: no KL term).
    """

    mask_NT: Tensor
    rewards_N: Tensor
    old_logprobs_NT: Tensor
    ref_logprobs_NT: Tensor | None = None


def advantages(rollouts: Rollouts, *, kl_coef: float, sigma: float) -> Tensor:
    """Returns to go of 1[last token] R - kl_coef (logp - ref), whitened over all tokens, beyond ``sigma`` set to 0."""
    mask_NT = rollouts.mask_NT.double()
    reward_NT = torch.zeros_like(mask_NT)
    for row, length in enumerate(rollouts.mask_NT.sum(1).tolist()):
        reward_NT[row, int(length) - 1] = rollouts.rewards_N[row]
    if rollouts.ref_logprobs_NT is not None:
        reward_NT -= kl_coef * (rollouts.old_logprobs_NT - rollouts.ref_logprobs_NT) * mask_NT
    return_NT = torch.zeros_like(mask_NT)
    to_go_N = torch.zeros(len(mask_NT), dtype=mask_NT.dtype)
    for t in reversed(range(mask_NT.shape[1])):
        to_go_N = to_go_N + reward_NT[:, t]
        return_NT[:, t] = to_go_N
    tokens = return_NT[rollouts.mask_NT.bool()]
    if tokens.std(correction=0) == 0:
        return torch.zeros_like(return_NT).float()
    whitened_NT = (return_NT - tokens.mean()) / tokens.std(correction=0)
    return torch.where(whitened_NT.abs() <= sigma, whitened_NT, torch.zeros_like(whitened_NT)).float()


def loss(
    logprobs_MT: Tensor,
    old_logprobs_MT: Tensor,
    advantages_MT: Tensor,
    mask_MT: Tensor,
    *,
    clip_eps: float,
    preclip: tuple[float, float],
) -> Tensor:
    """PPO clip on the pre-clipped ratio; mean over a rollout's tokens, then over rollouts."""
    bounds = torch.log(torch.tensor(preclip))
    ratio_MT = torch.exp(torch.clamp(logprobs_MT - old_logprobs_MT, bounds[0].item(), bounds[1].item()))
    unclipped_MT = ratio_MT * advantages_MT
    clipped_MT = torch.clamp(ratio_MT, 1 - clip_eps, 1 + clip_eps) * advantages_MT
    objective_MT = torch.where(unclipped_MT < clipped_MT, unclipped_MT, clipped_MT)
    per_rollout_M = torch.stack([objective_MT[row][mask_MT[row].bool()].mean() for row in range(len(mask_MT))])
    return -per_rollout_M.mean()


def step(
    policy: torch.nn.Module,
    logprobs: Callable[[Tensor], Tensor],
    rollouts: Rollouts,
    optimizer: torch.optim.Optimizer,
    minibatches: Iterable[Tensor],
    *,
    clip_eps: float = 0.2,
    preclip: tuple[float, float] = (1e-3, 1e3),
    sigma: float = 3.0,
    kl_coef: float = 0.0,
    max_grad_norm: float = 1.0,
) -> list[float]:
    """All optimizer steps on one batch of rollouts; returns the loss of each.

    ``logprobs(rows)`` gives the policy's log-probs, with gradient, of the completions of the rollouts named by ``rows`` [M],
    seen with their images. ``minibatches`` yields those row indices, epoch after epoch.
    """
    advantages_NT = advantages(rollouts, kl_coef=kl_coef, sigma=sigma)
    losses = []
    for rows_M in minibatches:
        value = loss(
            logprobs(rows_M),
            rollouts.old_logprobs_NT[rows_M],
            advantages_NT[rows_M],
            rollouts.mask_NT[rows_M],
            clip_eps=clip_eps,
            preclip=preclip,
        )
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
        optimizer.step()
        losses.append(value.item())
    return losses
