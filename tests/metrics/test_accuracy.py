"""Numbers worked by hand, and intervals against their definition."""

from __future__ import annotations

import math

import pytest

from rewardlab.metrics.accuracy import (
    Labeled,
    invalid_rate,
    macro,
    micro,
    pair_score,
    position_bias,
    status_counts,
    swap_consistency,
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
