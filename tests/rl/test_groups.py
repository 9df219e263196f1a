"""Group advantages against numbers worked by hand and against laws; what mixing the two orders of a pair does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardlab.rl.groups import (
    centered,
    fill_unscored,
    group_ids,
    group_means,
    group_sizes,
    leave_one_out,
    standardized,
    varying_frac,
)

REWARDS = torch.tensor([2.0, 0.5, 0.5, 1.0, 1.5, 1.5, 2.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 2])


def test_by_hand() -> None:
    """Group 0: mean 1, deviations 1 -.5 -.5 0, sample variance 1.5/3; group 1 all equal; group 2 alone."""
    assert group_sizes(GROUPS).tolist() == [4, 4, 4, 4, 2, 2, 1]
    assert group_means(REWARDS, GROUPS).tolist() == [1, 1, 1, 1, 1.5, 1.5, 2]
    assert centered(REWARDS, GROUPS).tolist() == [1, -0.5, -0.5, 0, 0, 0, 0]
    assert standardized(REWARDS, GROUPS, eps=0).nan_to_num(0).tolist() == pytest.approx(
        [2**0.5, -(0.5**0.5), -(0.5**0.5), 0, 0, 0, 0]
    )
    assert leave_one_out(REWARDS, GROUPS).tolist() == pytest.approx([4 / 3, -2 / 3, -2 / 3, 0, 0, 0, 0])


@pytest.mark.parametrize(("right", "top", "bottom"), [(1, 3.75, -0.25), (8, 0.968, -0.968), (15, 0.25, -3.75)])
def test_rare_outcomes_weigh_more(right: int, top: float, bottom: float) -> None:
    """Sixteen verdicts, ``right`` of them right: the deviation of GRPO blows up the rare ones; Dr. GRPO's does not."""
    rewards = torch.tensor([1.0] * right + [0.0] * (16 - right))
    groups = torch.zeros(16, dtype=torch.long)
    advantages = standardized(rewards, groups, eps=0)
    assert (advantages[0].item(), advantages[-1].item()) == pytest.approx((top, bottom), abs=1e-3)
    assert centered(rewards, groups).abs().max() < 1


def test_laws() -> None:
    """Sum to zero in each group; GRPO ignores shift and scale, Dr. GRPO and RLOO ignore the shift and keep the scale."""
    generator = torch.Generator().manual_seed(0)
    rewards, groups = torch.randn(60, generator=generator), torch.arange(60) % 7
    for function in (centered, standardized, leave_one_out):
        sums = torch.zeros(7).index_add(0, groups, function(rewards, groups))
        torch.testing.assert_close(sums, torch.zeros(7), atol=1e-5, rtol=0)
        torch.testing.assert_close(function(rewards + 5, groups), function(rewards, groups), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(standardized(3 * rewards, groups, eps=0), standardized(rewards, groups, eps=0))
    torch.testing.assert_close(centered(3 * rewards, groups), 3 * centered(rewards, groups))
    torch.testing.assert_close(leave_one_out(rewards, groups), centered(rewards, groups) * sizes_factor(groups))
    shuffled = torch.randperm(60, generator=generator)
    torch.testing.assert_close(standardized(rewards[shuffled], groups[shuffled]), standardized(rewards, groups)[shuffled])


def sizes_factor(groups: torch.Tensor) -> torch.Tensor:
    counts = groups.bincount()[groups]
    return counts / (counts - 1)


def test_each_rollout_against_the_mean_of_the_others() -> None:
    """RLOO in its own words, by loops."""
    got = leave_one_out(REWARDS, GROUPS)
    for n, (reward, group) in enumerate(zip(REWARDS.tolist(), GROUPS.tolist(), strict=True)):
        others = [r for m, (r, g) in enumerate(zip(REWARDS.tolist(), GROUPS.tolist(), strict=True)) if g == group and m != n]
        expected = reward - sum(others) / len(others) if others else 0.0
        assert got[n].item() == pytest.approx(expected, abs=1e-6)


def test_undecided() -> None:
    """All right and all wrong groups teach a group-relative method nothing."""
    right = torch.tensor([1.0, 1, 0, 0, 1, 0, 1])
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    assert varying_frac(right, groups) == 0.25


def pull_on_the_bias(bias: float, skill: float, *, mixed: bool, advantage: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Exact expected policy gradient on ``bias``, of a judge that says "first" with logit bias + skill in the one order of a
    pair and bias - skill in the other, where "first" is right in the one and wrong in the other; four rollouts each."""
    p_first = torch.sigmoid(torch.tensor([bias + skill, bias - skill]))
    expected = 0.0
    for counts in itertools.product(range(5), repeat=2):
        chance = math.prod(
            math.comb(4, n) * float(p) ** n * (1 - float(p)) ** (4 - n) for n, p in zip(counts, p_first, strict=True)
        )
        said_first = torch.tensor([[float(i < n) for i in range(4)] for n in counts])
        right = torch.stack([said_first[0], 1 - said_first[1]]).flatten()
        groups = torch.zeros(8, dtype=torch.long) if mixed else torch.arange(8) // 4
        score = said_first.flatten() - p_first.repeat_interleave(4)  # d log p / d bias
        expected += chance * float((advantage(right, groups) * score).sum())
    return expected


@pytest.mark.parametrize("advantage", [centered, standardized])
@pytest.mark.parametrize(("bias", "skill"), [(1.0, 0.5), (2.0, 0.5), (0.5, 2.0), (2.0, 2.0)])
def test_mixing_the_orders_does_not_reinforce_a_position_bias(
    bias: float, skill: float, advantage: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Computed, not sampled: whether a group holds one order or both, the expected gradient *lowers* the bias.

    That mixing feeds the bias is often said; a baseline that does not depend on the rollout cannot do it. Groups are of one
    order here because a baseline should be of one prompt, not to keep a bias from growing.
    """
    for mixed in (False, True):
        assert pull_on_the_bias(bias, skill, mixed=mixed, advantage=advantage) < -0.05
    assert pull_on_the_bias(bias, 0.0, mixed=True, advantage=advantage) == pytest.approx(0, abs=1e-6)


def test_each_order_is_a_group_of_its_own() -> None:
    """Numbers by first appearance."""
    assert group_ids(["p", "p", "q", "p"], ["given", "swapped", "given", "given"]).tolist() == [0, 1, 2, 0]


def test_two_of_a_group_by_hand() -> None:
    """Deviations of one half, a sample variance of 1/2, and the epsilon of GRPO added to the deviation; alone it is 0."""
    rewards, groups = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1])
    half = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert standardized(rewards, groups).tolist() == pytest.approx([half, -half, 0.0], rel=1e-6)
    assert leave_one_out(rewards, groups).tolist() == [1.0, -1.0, 0.0]


def test_what_could_not_be_scored_is_its_groups_mean() -> None:
    """Of the scored ones; 0 where there is none, and scored ones stay as they are."""
    nan = math.nan
    rewards, groups = torch.tensor([1.0, nan, 4.0, nan, nan, 7.0]), torch.tensor([0, 0, 0, 1, 1, 2])
    assert fill_unscored(rewards, groups).tolist() == [1.0, 2.5, 4.0, 0.0, 0.0, 7.0]
    assert centered(fill_unscored(rewards, groups), groups).tolist() == [-1.5, 0.0, 1.5, 0.0, 0.0, 0.0]
    assert fill_unscored(torch.tensor([3.0, nan]), torch.zeros(2, dtype=torch.long)).tolist() == [3.0, 3.0]


def test_a_pair_without_an_order_is_no_key() -> None:
    for orders in (["given"], ["given"] * 3):
        with pytest.raises(ValueError, match="argument"):
            group_ids(["a", "b"], orders)
