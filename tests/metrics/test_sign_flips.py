"""The p-value of paired differences: every pattern of signs, or draws of them; what was seen is one of the patterns."""

from __future__ import annotations

from itertools import product

import pytest

from rewardlab.metrics.intervals import sign_flip_p


def test_the_observed_pattern_counts() -> None:
    """Sixty differences alike: no random pattern is as large, so that the observed one is the only one."""
    assert sign_flip_p([1.0] * 60) == pytest.approx(1 / 10_001)
    assert sign_flip_p([1.0] * 60, flips=500) == pytest.approx(1 / 501)


@pytest.mark.parametrize(
    "differences", [[1.0], [1, 1, -1], [0.5, -0.25, 1.0, 0.75], [0.1, 0.2, -0.3, 0.4, 0.7], [2, -1, -1, 0.5, 3, 1], [0.3, -0.3]]
)
def test_every_pattern_of_signs(differences: list[float]) -> None:
    """One by one; sums that are equal but for rounding are as large. Differences of 0 take no part, nor do those of pairs of a
    cluster that add up to 0."""
    patterns = product((1, -1), repeat=len(differences))
    sums = [abs(sum(sign * value for sign, value in zip(signs, differences, strict=True))) for signs in patterns]
    expected = sum(each >= abs(sum(differences)) - 1e-6 for each in sums) / len(sums)
    assert sign_flip_p(differences) == expected
    assert sign_flip_p([0.0, *differences, 0.0]) == expected
    pairs = [part for value in differences for part in (value - 1, 1.0)]
    names = [str(n) for n in range(len(differences)) for _ in range(2)]
    assert sign_flip_p([*pairs, 5.0, -5.0], [*names, "none", "none"]) == pytest.approx(expected)


def test_no_difference_is_no_evidence() -> None:
    assert sign_flip_p([]) == sign_flip_p([], []) == sign_flip_p([0.0, 0.0]) == 1.0


def test_all_patterns_of_thirteen_and_draws_of_more() -> None:
    """Where all are alike two patterns of 2^13 are as large; of ten draws and the one seen none is rarer than 1 in 11."""
    assert sign_flip_p([1.0] * 13, flips=10) == 2 / 2**13
    assert sign_flip_p([1.0] * 14, flips=10) == 1 / 11


def test_as_many_draws_as_are_asked_for() -> None:
    """Of a sum of 0 every pattern is as large: all of them count, whatever chunks they are drawn in."""
    for flips in (10, 1000, 2500):
        assert sign_flip_p([1.0, -1.0] * 10, flips=flips) == 1.0


def test_draws_are_near_the_exact_share_and_always_the_same() -> None:
    """Thirteen for and seven against: P(|S| >= 6) of 20 fair signs is 0.2632."""
    differences = [1.0] * 13 + [-1.0] * 7
    assert sign_flip_p(differences) == pytest.approx(0.2632, abs=0.02)
    assert sign_flip_p(differences) == sign_flip_p(differences, flips=10_000, seed=0)
    assert sign_flip_p(differences) != sign_flip_p(differences, seed=1)
