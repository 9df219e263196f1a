"""Numbers worked by hand, and intervals against their definition."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import pytest

from rewardlab.metrics.accuracy import (
    Labeled,
    invalid_rate,
    lead_counts,
    lead_probabilities,
    macro,
    micro,
    pair_score,
    position_bias,
    status_counts,
    swap_consistency,
    vote_accuracy,
)
from rewardlab.metrics.intervals import paired_difference
from rewardlab.types import VerdictStatus
from tests.support.labeled import labeled


@pytest.mark.parametrize(
    ("item", "score"),
    [
        (labeled("1", "2"), 1.0),  # right in both orders
        (labeled("1", "1"), 0.5),  # always the first
        (labeled("2", "1"), 0.0),
        (labeled("112", "221"), 1.0),
        (labeled("12", "22"), 0.5),  # a tie in one order is not right
        (labeled("1-", "--"), 0.5),  # invalid votes do not decide; without any valid vote it is not right
        (labeled("=", "2"), 0.5),
        (labeled("1", preferred=1), 0.0),
        (labeled("2", "1", preferred=1), 1.0),
    ],
)
def test_pair_score(item: Labeled, score: float) -> None:
    """Mean over the orders of "the majority names the preferred response"."""
    assert pair_score(item) == score


def test_rates() -> None:
    """Two pairs, eight votes: counted by hand."""
    items = [labeled("11", "2-"), labeled("12", "=1")]
    assert status_counts(items) | {} == {**dict.fromkeys(map(str, VerdictStatus), 0), "ok": 6, "no_verdict": 1, "tie": 1}
    assert invalid_rate(items) == 1 / 8
    assert position_bias(items) == pytest.approx(4 / 6 - 0.5)
    assert swap_consistency(items) == 0.5  # the second pair ties in one order
    assert swap_consistency([labeled("1")]) is None
    assert position_bias([labeled("-")]) is None


def test_micro_and_macro() -> None:
    """Three right of four, but one of two groups entirely wrong."""
    items = [labeled("1", group="a"), labeled("1", group="a"), labeled("1", group="a"), labeled("2", group="b")]
    assert micro(items) == 0.75
    assert macro(items) == 0.5
    assert math.isnan(micro([]))


def test_paired_difference() -> None:
    """A gain on every fifth of 500 pairs: 20 points, and the normal interval around it."""
    before = {str(n): 0.0 for n in range(500)}
    after = {str(n): float(n % 5 == 0) for n in range(500)}
    gain, (low, high) = paired_difference(before, after)
    half = 1.96 * math.sqrt(0.2 * 0.8 / 500)
    assert gain == 0.2
    assert (low, high) == (pytest.approx(0.2 - half, abs=0.006), pytest.approx(0.2 + half, abs=0.006))
    assert paired_difference(before, before) == (0.0, (pytest.approx(-0.0076, abs=1e-4), pytest.approx(0.0076, abs=1e-4)))
    with pytest.raises(ValueError, match="same pairs"):
        paired_difference({"a": 1.0}, {"b": 1.0})


def every_draw(num_right: int, num_wrong: int, num_votes: int, k: int) -> Counter[int]:
    """Leads (right less wrong) of every draw of ``k`` votes of a pool, one by one."""
    pool = [1] * num_right + [-1] * num_wrong + [0] * (num_votes - num_right - num_wrong)
    return Counter(sum(pool[n] for n in draw) for draw in combinations(range(num_votes), k))


def test_fewer_votes_are_every_draw_of_them() -> None:
    """All pools of up to six votes, of which some name nobody: the leads, the majority, and at least one right vote."""
    for num_votes in range(1, 7):
        for num_right, num_wrong in product(range(num_votes + 1), repeat=2):
            if num_right + num_wrong > num_votes:
                continue
            for k in range(1, num_votes + 1):
                draws = every_draw(num_right, num_wrong, num_votes, k)
                assert {lead: n for lead, n in lead_counts(num_right, num_wrong, num_votes, k).items() if n} == draws
                ahead = sum(n for lead, n in draws.items() if lead > 0) / draws.total()
                assert vote_accuracy(num_right, num_wrong, num_votes, k) == pytest.approx(ahead)
                assert float(lead_probabilities(num_right, num_wrong, num_votes, k)[k + 1 :].sum()) == pytest.approx(ahead)
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"^k must be between 1 and the 3 votes of the pool, got {k}$"):
            vote_accuracy(1, 1, 3, k)


def test_fewer_votes_of_pairs_and_groups() -> None:
    """One vote of 2 right of 3, and of 1 of 2: 2/3 and 1/2 in the mean of the orders; more than one group weighs alike."""
    item = labeled("112", "12", group="a")
    assert pair_score(item, 1) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert pair_score(item) == 0.5
    items = [item, labeled("1", "2", group="a"), labeled("2", "1", group="b")]
    assert micro(items, 1) == pytest.approx((7 / 12 + 1 + 0) / 3)
    assert macro(items, 1) == pytest.approx(((7 / 12 + 1) / 2 + 0) / 2)
    assert macro(items) == pytest.approx((0.75 + 0) / 2)
    assert labeled("12-", preferred=1).tallies == ((1, 1, 3),)
    assert labeled("1", preferred=1).tallies == ((0, 1, 1),)


def test_where_there_is_nothing() -> None:
    assert math.isnan(macro([]))
    assert math.isnan(invalid_rate([]))
    assert math.isnan(invalid_rate([labeled("")]))
    assert pair_score(labeled("")) == 0.0
    assert swap_consistency([]) is None


def test_swaps_of_pairs_that_name_nobody_or_lack_an_order() -> None:
    """Two orders without a verdict are alike and not consistent; one pair in twenty may lack an order, two may not."""
    assert swap_consistency([labeled("-", "-"), labeled("=", "=")]) == 0.0
    assert swap_consistency([labeled("1", "2"), labeled("1", "-"), labeled("-", "2")]) == pytest.approx(1 / 3)
    assert swap_consistency([labeled("1", "2")] * 19 + [labeled("1")]) == 1.0
    assert swap_consistency([labeled("1", "2")] * 18 + [labeled("1")] * 2) is None
