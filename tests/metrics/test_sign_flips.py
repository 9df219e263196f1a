"""The p-value of paired differences never is 0: what was seen is one of the patterns."""

from __future__ import annotations

import pytest

from rewardlab.metrics.intervals import sign_flip_p


def test_the_observed_pattern_counts() -> None:
    """Sixty differences alike: no random pattern is as large, so that the observed one is the only one."""
    assert sign_flip_p([1.0] * 60) == pytest.approx(1 / 10_001)
    assert sign_flip_p([1.0] * 60, flips=500) == pytest.approx(1 / 501)
