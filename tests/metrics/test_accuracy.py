"""Numbers worked by hand, and intervals against their definition."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, product

import pytest

from rewardlab.metrics.accuracy import (
    OUTCOME,
    Labeled,
    any_correct,
    any_correct_score,
    balanced_accuracy,
    by_group,
    invalid_rate,
    length_bias,
    macro,
    micro,
    pair_length_biases,
    pair_score,
    position_bias,
    right_counts,
    right_probabilities,
    smallest_pool,
    status_counts,
    swap_consistency,
    vote_accuracy,
    vote_counts,
)
from rewardlab.metrics.intervals import paired_difference
from rewardlab.types import Order, VerdictStatus
from rewardlab.verdicts.votes import majority
from tests.support.labeled import labeled


@pytest.mark.parametrize(
    ("item", "score"),
    [
        (labeled("1", "2"), 1.0),  # right in both orders
        (labeled("1", "1"), 0.5),  # always the first
        (labeled("2", "1"), 0.0),
        (labeled("112", "221"), 1.0),
        (labeled("12", "22"), 0.5),  # a tie in one order is not right
        (labeled("1-", "--"), 0.0),  # one of two votes asked is not more than half
        (labeled("1----", "2----"), 0.0),
        (labeled("11-", "22="), 1.0),
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
    assert swap_consistency(items) == 0.0  # either has an order without more than half of its two votes
    assert swap_consistency([*items, labeled("112", "22-")]) == pytest.approx(1 / 3)
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
    assert paired_difference({"a": 0.75, "b": 0.5}, {"b": 1.0, "a": 0.5}) == (0.125, (-1.0, 1.0))
    with pytest.raises(ValueError, match=r"^a paired comparison needs the same pairs on both sides$"):
        paired_difference({"a": 1.0}, {"b": 1.0})


def every_draw(num_right: int, num_votes: int, k: int) -> Counter[int]:
    """Numbers of right votes in every draw of ``k`` votes of a pool, one by one."""
    pool = [1] * num_right + [0] * (num_votes - num_right)
    return Counter(sum(pool[n] for n in draw) for draw in combinations(range(num_votes), k))


def test_fewer_votes_are_every_draw_of_them() -> None:
    """All pools of up to six votes: how many of a draw are right, and how often more than half of it."""
    for num_votes in range(1, 7):
        for num_right, k in product(range(num_votes + 1), range(1, num_votes + 1)):
            draws = every_draw(num_right, num_votes, k)
            assert {right: n for right, n in enumerate(right_counts(num_right, num_votes, k)) if n} == draws
            ahead = sum(n for right, n in draws.items() if right > k / 2) / draws.total()
            assert vote_accuracy(num_right, num_votes, k) == pytest.approx(ahead)
            shares = [draws[right] / draws.total() for right in range(k + 1)]
            assert right_probabilities(num_right, num_votes, k) == pytest.approx(shares)
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"^k must be between 1 and the 3 votes of the pool, got {k}$"):
            vote_accuracy(1, 3, k)


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


@pytest.mark.parametrize(("given", "swapped"), [("1122-", "2122="), ("111", "222"), ("12", "21"), ("----", "2111")])
@pytest.mark.parametrize("preferred", [0, 1])
def test_balanced_majority_by_enumeration(given: str, swapped: str, preferred: int) -> None:
    """Every choice of k votes of each order, its majority taken by the reducer that runs use."""
    item = labeled(given, swapped, preferred=preferred)
    first, second = ([v for v in item.judgment.votes if v.order is order] for order in Order)
    for k in range(1, min(len(first), len(second)) + 1):
        outcomes = [majority((*a, *b)).winner == preferred for a in combinations(first, k) for b in combinations(second, k)]
        tallied = [(sum(v.winner == preferred for v in own), len(own)) for own in (first, second)]
        assert balanced_accuracy(tallied[0], tallied[1], k) == pytest.approx(sum(outcomes) / len(outcomes))


def test_length_lean_by_hand() -> None:
    """Among three pairs of unequal length the longer is better in one; votes name it in all, half and half of the cases: +1/3.

    Invalid votes of a pair do not make it count for less: a judge that is right wherever it can be read has no lean.
    """
    items = [labeled("1", "2"), labeled("1", "1"), labeled("2", "2"), labeled("1", "2")]
    # longer: the first response of pair 0 (better), the second of pairs 1 and 2 (worse); pair 3 is even
    assert length_bias(items, [0, 1, 1, None]) == pytest.approx((1 + 0.5 + 0.5) / 3 - 1 / 3)
    assert pair_length_biases(items, [0, 1, 1, None]) == [0.0, 0.5, 0.5, None]
    right = [labeled("11", "22"), labeled("1-", "--"), labeled("--", "--")]
    assert length_bias(right, [0, 1, 1]) == 0
    assert length_bias(items, [None] * 4) is None
    assert length_bias([labeled("-", "=")], [0]) is None
    for longer in ([0], [0] * 5):
        with pytest.raises(ValueError, match="argument"):
            pair_length_biases(items, longer)


def test_counts_of_a_pairs_votes() -> None:
    """Three choices, two of them of the first place: half a vote too many; one vote of five cannot be read, a tie can."""
    assert vote_counts(labeled("11=", "2-")) == (3, 0.5, 1, 5)
    assert vote_counts(labeled("2", "22")) == (3, -1.5, 0, 3)
    assert vote_counts(labeled("")) == (0, 0, 0, 0)


def test_outcomes_of_no_known_place_have_no_position() -> None:
    """Of recorded outcomes only right or wrong is known: they count as votes, and say nothing of the first place."""
    placed, judged = labeled("1", "2"), labeled("111").judgment
    votes = tuple(replace(vote, verdict=replace(vote.verdict, rule=OUTCOME)) for vote in judged.votes)
    alone = replace(placed, judgment=replace(judged, votes=votes))
    both = replace(placed, judgment=replace(judged, votes=(*votes, *labeled("2-").judgment.votes)))
    assert (position_bias([alone]), vote_counts(alone)) == (None, (0, 0, 0, 3))
    assert (position_bias([both]), vote_counts(both)) == (-0.5, (1, -0.5, 1, 5))
    assert position_bias([placed, labeled("1", "-")]) == pytest.approx(2 / 3 - 1 / 2)


def test_at_least_one_right_vote() -> None:
    """One of three is right: one draw finds it once in three, two in two of three; the mean is over the orders."""
    assert [any_correct(1, 3, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert any_correct_score([(1, 2, 3), (0, 3, 3)], 2) == pytest.approx(1 / 3)
    assert any_correct_score([], 1) == 0.0
    assert any_correct(59, 60, 2) == 1.0  # of one wrong vote no two are drawn
    assert any_correct(1, 60, 3) == pytest.approx(1 / 20)
    assert any_correct(58, 60, 2) == pytest.approx(1 - 1 / math.comb(60, 2))


def test_up_to_forty_eight_votes_are_exact() -> None:
    """To the last digit: numbers of draws, divided."""
    draws, counts = math.comb(48, 11), (right_counts(19, 48, 11), right_counts(24, 48, 11))
    assert vote_accuracy(19, 48, 11) == sum(counts[0][6:]) / draws
    both = sum(n * m for a, n in enumerate(counts[0]) for b, m in enumerate(counts[1]) if a + b > 11)
    assert balanced_accuracy((19, 48), (24, 48), 11) == both / draws**2
    assert any_correct(5, 48, 30) == 1 - math.comb(43, 30) / math.comb(48, 30)


def test_pools_and_groups() -> None:
    """The smallest pool is of any trial that has votes; groups come by name, their pairs as they were given."""
    items = [labeled("111", "12", group="b"), labeled("1111", group="a"), labeled("", "222", group="b")]
    assert smallest_pool(items) == 2
    assert smallest_pool(items[1:]) == 3
    assert smallest_pool([]) == smallest_pool([labeled("")]) == 0
    assert list(by_group(items).items()) == [("a", [items[1]]), ("b", [items[0], items[2]])]
