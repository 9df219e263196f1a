"""Policy losses per token and how they are averaged. Shapes: ``N`` rollouts, ``T`` tokens, ``mask_NT`` as in advantages."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def preclip(logprobs_NT: Tensor, old_logprobs_NT: Tensor, bounds: tuple[float, float]) -> Tensor:
    """log-ratio clamped to [ln bounds[0], ln bounds[1]] *before* it is exponentiated (arXiv 2505.02835, eq. 5).

    Within the bounds this is the identity. Outside, the ratio is finite whatever the policies, and the token's gradient
    is exactly 0.
    """
    return (logprobs_NT - old_logprobs_NT).clamp(math.log(bounds[0]), math.log(bounds[1]))


def outside(logprobs_NT: Tensor, old_logprobs_NT: Tensor, mask_NT: Tensor, bounds: tuple[float, float]) -> float:
    """Share of tokens that :func:`preclip` clamps."""
    log_ratio_NT = logprobs_NT - old_logprobs_NT
    hit_NT = (log_ratio_NT < math.log(bounds[0])) | (log_ratio_NT > math.log(bounds[1]))
    return ((hit_NT & (mask_NT > 0)).sum() / mask_NT.sum().clamp(min=1)).item()


def ppo_clip(ratio_NT: Tensor, advantages_NT: Tensor, clip_eps: float) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) per token (arXiv 1707.06347, eq. 7)."""
    clipped_NT = ratio_NT.clamp(1 - clip_eps, 1 + clip_eps)
    return -torch.minimum(ratio_NT * advantages_NT, clipped_NT * advantages_NT)


def mean_of_sequence_means(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Mean over each rollout's tokens, then over rollouts: every rollout weighs the same, whatever its length."""
    return ((values_NT * mask_NT).sum(1) / mask_NT.sum(1).clamp(min=1)).mean()
