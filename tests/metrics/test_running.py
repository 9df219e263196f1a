"""Metrics of a run joined over additions and processes, by hand."""

from __future__ import annotations

import math

import pytest

from rewardlab.metrics.running import Metric, MetricAccumulator


def test_a_mean_weighs_and_a_maximum_does_not() -> None:
    """Means 1 of 3 things and 5 of 1 are 2 of 4; of maxima the larger counts, whatever its weight; nothing is kept."""
    metrics = MetricAccumulator()
    for name, metric in (
        ("loss", Metric(1.0, 3.0)),
        ("loss", Metric(5.0)),
        ("most", Metric(2.0, 9.0, "max")),
        ("most", Metric(-7.0, 1.0, "max")),
        ("a", Metric(4.0)),
    ):
        metrics.add(name, metric)
    flushed = metrics.flush(list)
    assert flushed == {"a": 4.0, "loss": 2.0, "most": 2.0}
    assert list(flushed) == ["a", "loss", "most"]
    assert metrics.flush(list) == {}
    metrics.add("most", Metric(-7.0, 1.0, "max"))
    assert metrics.flush(list) == {"most": -7.0}


def test_a_mean_over_nothing_is_left_out() -> None:
    metrics = MetricAccumulator()
    for metric in (Metric(math.nan), Metric(1.0, 0.0), Metric(1.0, -1.0)):
        metrics.add("loss", metric)
    assert metrics.flush(list) == {}
    metrics.add("loss", Metric(3.0, 0.5))
    assert metrics.flush(list) == {"loss": 3.0}


def test_processes_are_joined_as_additions_are() -> None:
    """Of three processes, one without the metric: the sums are joined, not the means, and a maximum is of all."""
    shards: list[object] = []
    most = [("most", Metric(value, reduce="max")) for value in (7.0, 8.0)]
    for values in ([("loss", Metric(1.0, 3.0)), *most], [], [("loss", Metric(5.0))]):
        one = MetricAccumulator()
        for name, metric in values:
            one.add(name, metric)
        one.flush(lambda own: shards.extend(own) or [])  # type: ignore[func-returns-value]
    last = MetricAccumulator()
    for value in (9.0, 6.0):
        last.add("most", Metric(value, reduce="max"))
    assert last.flush(lambda own: [*own, *shards]) == pytest.approx({"loss": 2.0, "most": 9.0})
