"""Axes of the figures that pages draw themselves: ticks and places worked by hand, and laws of any pair of ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.reporting.axes import LARGEST, log_axis, step_axis, value_axis, value_text


@pytest.mark.parametrize(
    ("low", "high", "unit", "labels"),
    [
        (0.0, 1.0, "%", "0 %|50 %|100 %"),
        (0.0, 0.013, "%", "0.0 %|0.5 %|1.0 %|1.5 %"),
        (1.0, 1.0, "%", "0 %|50 %|100 %"),
        (2.0, 2.0, "", "0|1|2|3|4"),
        (-0.2, 1.4, "", "-0.5|0.0|0.5|1.0|1.5"),
        (1e-6, 3e-6, "", "1e-6|1.5e-6|2e-6|2.5e-6|3e-6"),
        (950.0, 1234.0, "s", "900 s|1,000 s|1,100 s|1,200 s|1,300 s"),
        (-3.2, 1_234_567.0, "", "-5e5|0|5e5|1e6|1.5e6"),
    ],
)
def test_round_ticks(low: float, high: float, unit: str, labels: str) -> None:
    assert value_axis(low, high, unit=unit).labels == tuple(labels.split("|"))


def test_ticks_of_steps_and_of_powers() -> None:
    """Steps are whole numbers and end where the run does; powers of ten are as far apart as there is room."""
    assert [(tick.label, tick.place) for tick in step_axis(0, 1250).x_ticks] == [("0", 0.0), ("500", 40.0), ("1,000", 80.0)]
    assert step_axis(1, 3).labels == ("1", "2", "3")
    assert step_axis(7, 7).x_ticks[0].place == 50.0
    axis = log_axis(0.02, 70.0)
    assert axis.labels == ("0.01", "0.1", "1", "10", "100")
    assert (axis.down(0.01), axis.down(1.0), axis.down(100.0)) == (100.0, 50.0, 0.0)
    assert log_axis(1e-9, 1e9).labels == ("1e-9", "1e-4", "10", "1e6")


@given(*[st.floats(-LARGEST, LARGEST)] * 2)
def test_any_two_numbers_have_an_axis(one: float, other: float) -> None:
    """Both lie on it, ticks too, and no two ticks read alike; what is not told apart from 0 is drawn as 0."""
    low, high = sorted((one, other))
    axis = value_axis(low, high)
    assert 3 <= len(axis.labels) == len(set(axis.labels)) <= 7
    assert all(-0.01 <= axis.down(value) <= 100.01 for value in (low, high, *axis.values))


@given(*[st.floats(1e-300, LARGEST)] * 2)
def test_any_two_positive_numbers_have_a_logarithmic_axis(one: float, other: float) -> None:
    axis = log_axis(*sorted((one, other)))
    assert 2 <= len(axis.labels) == len(set(axis.labels)) <= 6
    assert all(-0.01 <= axis.down(value) <= 100.01 for value in (one, other, *axis.values))


@given(st.floats(-LARGEST, LARGEST))
def test_a_value_in_four_digits(value: float) -> None:
    text = value_text(value)
    assert len(text) <= 11
    assert math.isclose(float(text.replace(",", "")), value, rel_tol=5.1e-4)


def test_values_with_units() -> None:
    assert [value_text(*each) for each in ((96.094, "%"), (1234.5, ""), (1.2345e-6, ""), (0.0, "s"))] == [
        "96.09 %",
        "1,234",
        "1.234e-6",
        "0 s",
    ]
