"""Wilson's interval against scipy's, to the last digit."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from rewardlab.metrics.intervals import share_with_interval, wilson_interval


@pytest.mark.parametrize("number", [1, 2, 7, 40, 249])
def test_wilson_is_scipys(number: int) -> None:
    for hits in range(number + 1):
        theirs = binomtest(hits, number).proportion_ci(method="wilson")
        assert wilson_interval(hits, number) == (theirs.low, theirs.high)


def test_a_share_of_nothing() -> None:
    assert share_with_interval(0, 0) is None
    assert share_with_interval(1, 2) == [0.5, *wilson_interval(1, 2)]
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson_interval(3, 2)
