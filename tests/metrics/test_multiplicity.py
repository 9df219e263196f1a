"""Holm's adjustment, worked by hand, and that it keeps the error of a family."""

from __future__ import annotations

import numpy as np
import pytest

from rewardlab.benchmarks.comparison import holm


def test_by_hand() -> None:
    """Smallest times 4, next times 3, ...; none falls below the one before; in the order given."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.9, 0.6]) == [1.0, 1.0]  # twice the smaller one is no probability
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_of_twenty_judges_alike_few_families_have_a_false_one() -> None:
    draws = np.random.default_rng(0).random((1000, 20))
    assert np.mean([min(row) < 0.05 for row in draws]) > 0.5
    assert np.mean([min(holm(row.tolist())) < 0.05 for row in draws]) == pytest.approx(0.05, abs=0.02)
