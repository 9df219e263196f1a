"""Plans of what to draw and what to keep, on numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from trl.rewards import get_soft_overlong_punishment

from rewardlab.rl.selection import balance_groups, difficulty_weights, hardest_within, overlong_penalty, oversampling


def test_oversampling() -> None:
    """Half of the groups decided: twice the prompts, approached by the moving average; never under 1, never over the cap."""
    assert oversampling(1.0, 0.5, decay=0.0) == 2.0
    assert oversampling(1.0, 0.5, decay=0.9) == pytest.approx(1.1)
    factor = 1.0
    for _ in range(200):
        factor = oversampling(factor, 0.5)
    assert factor == pytest.approx(2.0)
    assert oversampling(1.0, 0.8, decay=0.0) == pytest.approx(5.0)
    assert oversampling(1.0, 0.0) == 1.0
    assert oversampling(8.0, 1.0, decay=0.0) == 8.0


def test_the_middle_is_drawn_most() -> None:
    """Symmetric about one half, and nothing is never drawn again."""
    weights = difficulty_weights(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert weights.tolist() == pytest.approx([0.05, 0.75, 1.0, 0.75, 0.05])


def test_hardest_within_domains() -> None:
    """A domain's scale and offset select nobody; a domain without spread is average; ties go by position."""
    scores, domains = [1.0, 2.0, 3.0, 10.0, 30.0, 20.0], ["a"] * 3 + ["b"] * 3
    assert hardest_within(scores, domains, 1 / 3) == [0, 3]
    assert hardest_within([s * 7 + 100 if d == "b" else s for s, d in zip(scores, domains, strict=True)], domains, 1 / 3) == [
        0,
        3,
    ]
    assert hardest_within(scores, domains, 0.0) == []
    assert hardest_within(scores, domains, 1.0) == list(range(6))
    assert hardest_within([5.0, 5.0, 1.0, 9.0], ["c", "c", "d", "d"], 0.5) == [0, 2]
    lower = [*scores]
    lower[4] = 5.0
    assert 4 in hardest_within(lower, domains, 1 / 3)


def test_a_domain_is_scaled_by_its_own_spread() -> None:
    """Of three domains, of which none lends another its mean or spread; a small spread is one, and no score loses a digit."""
    assert hardest_within([1.0, 2.0, 3.0, 10.0, 30.0, 20.0], ["a"] * 3 + ["b"] * 3, 1 / 6) == [0]  # both are 1.22 below
    assert hardest_within([0.1, 0.2, 0.3, 5.0, 5.0, 9.0], ["a"] * 3 + ["b", "c", "c"], 1 / 6) == [0]
    assert hardest_within([0.0, 1.0, 0.0, 0.0, 1.0, 1.0], ["a"] * 2 + ["b"] * 4, 1 / 6) == [0]  # 1 below in both: by position
    assert hardest_within([0.0, 0.0, 1.0, 1.0, 0.0, 1.0], ["b"] * 4 + ["a"] * 2, 1 / 6) == [0]
    assert hardest_within([5, 6, 100, 200, 300, 1, 1], ["a"] * 2 + ["b"] * 3 + ["c"] * 2, 2 / 7) == [0, 2]
    assert hardest_within([1e9 + 1, 1e9], ["a", "a"], 0.5) == [1]
    assert hardest_within([1.0] * 100, ["a"] * 100, 0.3) == list(range(30))


def test_overlong_penalty_is_trls() -> None:
    """DAPO's numbers: 0 at 16,384, -0.5 at 18,432, -1 at 20,480 and beyond; and TRL's function on every length around."""
    lengths = torch.tensor([0, 16384, 18432, 20480, 30000])
    assert overlong_penalty(lengths, longest=20480, margin=4096).tolist() == [0, 0, -0.5, -1, -1]
    theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    lengths = torch.arange(0, 130)
    expected = theirs(completion_ids=[[0] * n for n in lengths.tolist()])
    assert overlong_penalty(lengths, longest=100, margin=20).tolist() == pytest.approx(expected)


def test_balanced_groups() -> None:
    """Among groups of 4 with 3, 3, 3, 1, 1 and 2 right, the four taken are the even one and three that nearly cancel."""
    num_right = [3, 3, 3, 1, 1, 2]
    chosen = balance_groups(num_right, 4, 4)
    assert len(chosen) == len(set(chosen)) == 4
    assert 5 in chosen
    assert sum(num_right[n] for n in chosen) == 9  # 9 right, 7 wrong: within the size of a group
    assert balance_groups(num_right, 4, 9) == [0, 1, 2, 3, 4, 5]
    assert len(balance_groups([3, 3, 3], 4, 2)) == 2
    assert balance_groups([], 4, 2) == []
    assert balance_groups([4, 1, 3, 0], 4, 3) == [0, 1, 2]  # -2 and 2 are even, and then 4 is as good as -4
    assert balance_groups([4, 4, 4, 4, 7, 1, 7, 1], 8, 4) == [0, 1, 2, 3]  # the most even groups, not extremes that cancel
    assert balance_groups([5, 5, 1], 8, 2) == [0, 1]  # either way the totals are 4 apart: the more even group is taken
    assert sum(2 * [7, 7, 7, 2, 1][n] - 8 for n in balance_groups([7, 7, 7, 2, 1], 8, 4)) in range(-8, 9)
