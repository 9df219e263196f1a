"""The study of corrected win rates, short: a judge that favours a system is covered when corrected, and not alone."""

from __future__ import annotations

import pytest

from eval.system_win_rates import row_of

pytestmark = pytest.mark.nightly


def test_a_judge_that_favours_a_system_is_corrected() -> None:
    _, _, judge, labels, corrected, _, mean, most, *ranked = row_of("for one system", 300, 60)
    assert float(judge) < 20
    assert 90 <= float(corrected) <= 99
    assert 90 <= float(labels) <= 99
    assert float(mean) < 0.98
    assert float(most) <= 1.03
    assert float(ranked[2]) > float(ranked[0]) + 20
