"""Advantages relative to the other rollouts of a group, and what a group may be.

A group is one pair shown in **one** order, one prompt: :func:`group_ids` makes the order part of the key. (Mixing both orders
would not feed a position bias, as is often said: a test computes the expected gradient, and it lowers the bias either way.)

Shapes: ``N`` rollouts; ``groups_N`` holds the number of each rollout's group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def group_ids(pair_ids: Sequence[str], orders: Sequence[str]) -> Tensor:
    """Return [N] group numbers from 0 on, one for each (pair, order), in the order of first appearance."""
    number: dict[tuple[str, str], int] = {}
    return torch.tensor([number.setdefault(key, len(number)) for key in zip(pair_ids, orders, strict=True)])


def _sums(values_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return [N] the sum of each rollout's group."""
    sums = torch.zeros(int(groups_N.max()) + 1, dtype=torch.float64, device=values_N.device)
    return sums.index_add(0, groups_N, values_N.double())[groups_N]


def group_sizes(groups_N: Tensor) -> Tensor:
    """Return [N] how many rollouts each rollout's group has."""
    return _sums(torch.ones_like(groups_N), groups_N)


def group_means(values_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return [N] float64 mean of each rollout's group."""
    return _sums(values_N, groups_N) / group_sizes(groups_N)


def fill_unscored(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return rewards with nan, of rollouts that could not be scored, replaced by the mean of the scored ones of their group.

    They do not move the group's mean, and are none better or worse than it; 0 where none of a group was scored.
    """
    scored_N = ~rewards_N.isnan()
    total_N, count_N = _sums(rewards_N.nan_to_num(), groups_N), _sums(scored_N, groups_N)
    return torch.where(scored_N, rewards_N.double(), total_N / count_N.clamp(min=1)).float()


def centered(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """R - mean of the group (Dr. GRPO, arXiv 2503.20783: not divided by the deviation). A group of one gets 0."""
    return (rewards_N.double() - group_means(rewards_N, groups_N)).float()


def standardized(rewards_N: Tensor, groups_N: Tensor, eps: float = 1e-4) -> Tensor:
    """(R - mean) / (std + eps) within the group (GRPO, arXiv 2402.03300, section 4.1.2).

    The deviation is the sample's (divides by n - 1), as in TRL and verl; the paper does not say. A group of one, and one
    whose rewards are all equal, gets 0; verl instead leaves the bare reward on a group of one.
    """
    deviation_N = rewards_N.double() - group_means(rewards_N, groups_N)
    variance_N = _sums(deviation_N**2, groups_N) / (group_sizes(groups_N) - 1).clamp(min=1)
    return (deviation_N / (variance_N.sqrt() + eps)).float()


def leave_one_out(rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """R - mean of the *other* rollouts of the group (RLOO, arXiv 2402.14740). A group of one has no others and gets 0."""
    sizes_N = group_sizes(groups_N)
    return ((rewards_N.double() - group_means(rewards_N, groups_N)) * sizes_N / (sizes_N - 1).clamp(min=1)).float()


def varying_frac(rewards_N: Tensor, groups_N: Tensor) -> float:
    """Return the share of groups whose rewards are not all equal: the others teach a group-relative method nothing."""
    varies_N = centered(rewards_N, groups_N).abs() > 1e-6
    return len(set(groups_N[varies_N].tolist())) / len(set(groups_N.tolist()))
