"""Guaranteed thresholds: the bound against scipy, the sequence by hand, the level by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from rewardlab.metrics.guarantee import (
    at_most,
    certified_threshold,
    exact_upper_bound,
    label_counts,
)


@pytest.mark.parametrize(("hits", "number"), [(0, 1), (0, 45), (3, 50), (50, 50), (17, 4000), (1, 2)])
def test_bound_and_tail_are_scipys(hits: int, number: int) -> None:
    theirs = binomtest(hits, number, alternative="less").proportion_ci(0.9).high
    assert exact_upper_bound(hits, number, 0.9) == pytest.approx(theirs, abs=1e-12)
    for p in (0.001, 0.05, 0.5, 0.97):
        assert at_most(hits, number, p) == pytest.approx(binom.cdf(hits, number, p), rel=1e-9, abs=1e-300)


def test_each_step_is_the_least_that_shows_the_error() -> None:
    steps = label_counts(400, 0.05, 0.9)
    assert steps[0] >= 100
    assert steps[-1] == 400
    for count in steps[:-1]:
        hits = next(h for h in range(400) if binom.cdf(h + 1, count, 0.05) > 0.1)  # the most errors that still show it
        assert binom.cdf(hits, count, 0.05) <= 0.1 < binom.cdf(hits, count - 1, 0.05)
    assert label_counts(45, 0.05, 0.9) == (45,)
    assert label_counts(44, 0.05, 0.9) == ()  # 0.95 ** 44 is above 0.1


def test_the_lowest_threshold_whose_every_step_passes() -> None:
    """60 pairs: none of the surest 50 wrong, all below; the threshold is the surest verdict below those that are given."""
    confidences = [1 - n / 200 for n in range(60)]
    found = certified_threshold(confidences, [n < 50 for n in range(60)], error=0.05)
    assert (found.num_labels, found.num_given, found.num_wrong) == (60, 45, 0)
    assert found.threshold == confidences[45]
    assert found.upper_bound == pytest.approx(1 - 0.1 ** (1 / 45))
    assert found.gives(confidences[44])
    assert not found.gives(confidences[45])
    assert not found.gives(None)
    every = certified_threshold(confidences, [True] * 60, error=0.05)
    assert (every.threshold, every.num_given) == (np.nextafter(confidences[-1], 0), 60)  # no label is of lower ones


@pytest.mark.parametrize(
    ("confidences", "right", "clusters"),
    [
        ([0.9] * 44, [True] * 44, None),  # too few labels
        ([0.9] * 100, [n % 5 > 0 for n in range(100)], None),  # too many errors
        ([0.5, None] * 100, [True] * 200, None),  # nobody is named
        ([0.9] * 200, [True] * 200, [str(n % 40) for n in range(200)]),  # forty prompts
        ([], [], None),
    ],
)
def test_no_threshold_gives_no_verdict(confidences: list[float | None], right: list[bool], clusters: list[str] | None) -> None:
    found = certified_threshold(confidences, right, clusters)
    assert (found.threshold, found.num_given, found.upper_bound) == (None, 0, 1.0)
    assert not found.gives(1.0)


def test_equal_confidences_stand_or_fall_together() -> None:
    """Of ten votes many pairs have the same share: a threshold never parts them."""
    confidences = [1.0] * 300 + [0.9] * 100
    assert certified_threshold(confidences, [True] * 300 + [False] * 100).threshold == 0.9
    assert certified_threshold(confidences, [True] * 280 + [False] * 20 + [True] * 100).threshold is None


def test_one_pair_of_a_prompt_counts() -> None:
    """Fifty pairs of one prompt are one draw: repeating a label shows nothing."""
    names = [str(n // 50) for n in range(2500)]
    found = certified_threshold([0.9] * 2500, [True] * 2500, names)
    assert (found.num_labels, found.num_given) == (50, 50)
    assert found.upper_bound == exact_upper_bound(0, 50, 0.9)


def test_levels_are_checked() -> None:
    for levels in ({"error": 0.0}, {"error": 0.5}, {"confidence": 1.0}, {"confidence": 0.0}):
        with pytest.raises(ValueError, match="expected an error within"):
            certified_threshold([0.9], [True], **levels)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0.3, 0.6])
def test_the_error_is_kept_in_nine_label_sets_of_ten(cut: float) -> None:
    """Verdicts beyond a fraction of the surest are wrong in one of seven, the surer ones in one of twenty-five: most
    thresholds below the cut exceed an error of 5 %."""
    dice, above, sets = np.random.default_rng(1), 0, 700
    for _ in range(sets):
        sure = dice.random(300)
        wrong = dice.random(300) < np.where(sure > 1 - cut, 0.04, 1 / 7)
        found = certified_threshold(0.5 + sure / 2, ~wrong)
        if found.threshold is not None:
            below = 1 - cut - (2 * found.threshold - 1)
            above += below > 0 and (0.04 * cut + below / 7) / (cut + below) > 0.05
    assert above / sets < 0.1 + 2.4 * (0.1 * 0.9 / sets) ** 0.5
    assert above / sets > 0.01  # the bound is not idle
