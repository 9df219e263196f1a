"""Curves over pools of hundreds: floats against the integers, and the K that are shown."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rewardlab.benchmarks.scores import curve_ks
from rewardlab.metrics import accuracy
from rewardlab.metrics.accuracy import any_correct, balanced_accuracy, right_counts, right_probabilities, vote_accuracy
from rewardlab.verdicts import early_stopping
from rewardlab.verdicts.early_stopping import overturn_probability


def tallies(seed: int) -> tuple[tuple[int, int], tuple[int, int], int]:
    """(Right, all) votes of two pools, and a number of draws."""
    dice = random.Random(seed)
    sizes = [dice.randint(49, 400) for _ in range(2)]
    first, second = ((dice.randint(0, size), size) for size in sizes)
    return first, second, dice.randint(1, min(sizes))


@pytest.mark.parametrize("seed", range(12))
def test_floats_are_the_integers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To 1e-12, of pools to 400: the curve of floats and of counts of draws."""
    first, second, k = tallies(seed)
    counts, every = right_counts(*first, k), math.comb(first[1], k)
    shares = right_probabilities(*first, k)
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    assert [count / every for count in counts] == pytest.approx(shares, abs=1e-12)
    floats = vote_accuracy(*first, k), balanced_accuracy(first, second, k), any_correct(*first, k)
    monkeypatch.setattr(accuracy, "MOST_IN_INTEGERS", 10**9)
    integers = (
        vote_accuracy.__wrapped__(*first, k),
        balanced_accuracy.__wrapped__(first, second, k),
        any_correct(*first, k),
    )
    assert floats == pytest.approx(integers, abs=1e-12)


def test_a_pool_of_thousands() -> None:
    """Half right of 5,000: of 1,001 draws as many are right as wrong, and it sums to 1; one draw is right as the pool is."""
    shares = right_probabilities(2500, 5000, 1001)
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    assert shares == pytest.approx(shares[::-1], abs=1e-15)
    assert vote_accuracy(1234, 5000, 1) == pytest.approx(1234 / 5000, abs=1e-14)
    assert vote_accuracy(2501, 5000, 5000) == pytest.approx(1, abs=1e-12)


def test_which_k_are_shown() -> None:
    """All odd ones of small pools; of large ones 27 at most, odd but for the pool, closer together at the small end."""
    assert curve_ks(0) == []
    assert curve_ks(4) == [1, 3, 4]
    assert curve_ks(21) == list(range(1, 22, 2))
    for pool in (22, 40, 400, 10_000):
        ks = curve_ks(pool)
        assert (ks[0], ks[-1], ks[:11]) == (1, pool, list(range(1, 22, 2)))
        assert all(k % 2 for k in ks[:-1])
        assert len(ks) <= 27
    ratios = np.divide(curve_ks(400)[12:], curve_ks(400)[11:-1])
    assert ratios.max() < 1.35


@pytest.mark.parametrize("seed", range(12))
def test_stopping_in_floats_is_in_integers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of votes, the probability of an overturn by floats and by counts."""
    dice = random.Random(seed)
    trail = dice.randint(0, 150)
    lead, left = trail + dice.randint(0, 40), dice.randint(40, 300)
    floats = overturn_probability(lead, trail, left)
    monkeypatch.setattr(early_stopping, "MOST_IN_INTEGERS", 10**9)
    assert floats == pytest.approx(overturn_probability.__wrapped__(lead, trail, left), rel=1e-10, abs=1e-14)
