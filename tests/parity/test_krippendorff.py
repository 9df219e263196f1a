"""Krippendorff's alpha against the package of that name, on random tables with missing ratings."""

from __future__ import annotations

import numpy as np
import pytest

from rewardlab.metrics.agreement import krippendorffs_alpha

krippendorff = pytest.importorskip("krippendorff", reason="krippendorff is not installed; see make parity")


@pytest.mark.parametrize("missing", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("num_raters", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_alpha_is_the_packages(seed: int, num_raters: int, missing: float) -> None:
    dice = np.random.default_rng(seed)
    truth = dice.integers(0, 3, 50)
    ratings_RI = np.where(dice.random((num_raters, 50)) < 0.6, truth, dice.integers(0, 3, (num_raters, 50))).astype(float)
    ratings_RI[dice.random(ratings_RI.shape) < missing] = np.nan
    theirs = krippendorff.alpha(reliability_data=ratings_RI, level_of_measurement="nominal")
    items = [[int(choice) for choice in choices if not np.isnan(choice)] for choices in ratings_RI.T]
    assert krippendorffs_alpha(items) == pytest.approx(theirs)
