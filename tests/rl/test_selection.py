"""Plans of what to draw and what to keep, on numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.rewards import get_soft_overlong_punishment

from rewardlab.distill.selection import Difficulty
from rewardlab.rl.selection import (
    TIERS,
    RatioEMA,
    balance_groups,
    difficulty_weights,
    hardest_within,
    overlong_penalty,
    pass_rates,
    prior_counts,
    tier_numbers,
    updated_counts,
)

rates = st.floats(0, 1)


def ema_of(*decided: float) -> RatioEMA:
    average = RatioEMA()
    for frac in decided:
        average = average.update(frac)
    return average


def test_ratio_ema() -> None:
    """Half of the groups decided: twice the prompts, from the first batch on; then a tenth of the way in each batch."""
    assert RatioEMA().factor == 1.0
    assert ema_of(0.5).factor == pytest.approx(2.0)
    assert ema_of(*[0.5] * 200).factor == pytest.approx(2.0)
    assert ema_of(0.8).factor == pytest.approx(5.0)
    assert ema_of(0.0).factor == pytest.approx(1.0)
    assert ema_of(1.0).factor == pytest.approx(8.0)
    # by hand: ratios 1 and 2; (0.9 x 0.1 x 1 + 0.1 x 2) / 0.19
    assert ema_of(0.0, 0.5).factor == pytest.approx(0.29 / 0.19)
    assert ema_of(*[0.0] * 300, 0.5).factor == pytest.approx(1.1)


@given(st.lists(rates, min_size=1, max_size=30))
def test_the_factor_lies_between_the_ratios_it_has_seen(decided: list[float]) -> None:
    ratios = [1 / max(1 - frac, 1 / 8) for frac in decided]
    assert min(ratios) - 1e-9 <= ema_of(*decided).factor <= max(ratios) + 1e-9


@given(st.floats(0.05, 0.85), st.integers(8, 64))
def test_as_many_groups_are_mixed_as_are_needed(decided: float, needed: int) -> None:
    """Where the share stays as it was, what is drawn holds the needed number of mixed groups in expectation."""
    drawn = math.ceil(ema_of(*[decided] * 50).factor * needed)
    assert needed <= drawn * (1 - decided) + 1e-6 < needed + 1


def test_tags_and_rollouts_are_counted_together() -> None:
    """A tag is the teacher's answers and one of each; a group of eight outweighs it, and later ones what was before."""
    first = {tag: pass_rates(torch.tensor([prior_counts(tag)])).item() for tag in ("1", "", "2", "3", "unsolved")}
    assert first == pytest.approx({"1": 2 / 3, "": 1 / 2, "2": 1 / 2, "3": 2 / 5, "unsolved": 1 / 5})
    counts = updated_counts(torch.tensor(prior_counts("unsolved")), 8, 0)
    assert counts.tolist() == [8.5, 2.0]
    assert updated_counts(counts, 0, 8).tolist() == [4.25, 9.0]
    assert updated_counts(counts, 1, 0, decay=0.0).tolist() == [1.0, 0.0]


@given(st.sampled_from(["", "1", "2", "3", "unsolved"]), st.integers(0, 8), st.integers(1, 20))
def test_the_rate_goes_to_what_the_rollouts_say(tag: str, num_correct: int, times: int) -> None:
    """From the tag's side, nearer each time, and never to a share at which a prompt could not be drawn again."""
    counts, distances = torch.tensor(prior_counts(tag), dtype=torch.float64), list[float]()
    for _ in range(times):
        counts = updated_counts(counts, num_correct, 8 - num_correct)
        distances.append(abs(pass_rates(counts[None]).item() - num_correct / 8))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] <= 0.5 ** (times - 1) * 0.25
    assert 0 < pass_rates(counts[None]).item() < 1


def test_tiers() -> None:
    """The bounds are in the easier tier; they are those of `rewardlab select`."""
    shares = [0.0, 0.2, 0.25, 0.5, 0.6, 0.8, 0.9, 1.0]
    names = [TIERS[n] for n in tier_numbers(torch.tensor(shares, dtype=torch.float64)).tolist()]
    assert names == ["very_hard", "very_hard", "hard", "hard", "medium", "medium", "easy", "easy"]
    assert names == [Difficulty(student_rate=share).tier.value for share in shares]


def test_the_middle_is_drawn_most() -> None:
    """Symmetric about one half, and nothing is never drawn again."""
    weights = difficulty_weights(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert weights.tolist() == pytest.approx([0.05, 0.75, 1.0, 0.75, 0.05])


@given(rates, rates)
def test_a_rate_nearer_to_one_half_weighs_no_less(one: float, other: float) -> None:
    near, far = sorted((one, other), key=lambda rate: abs(rate - 0.5))
    weights = difficulty_weights(torch.tensor([near, far, 1 - near], dtype=torch.float64))
    assert 0.05 <= weights[1] <= weights[0] + 1e-12 <= 1 + 1e-12
    assert weights[2] == pytest.approx(float(weights[0]))


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
