"""Metrics of training, reduced over the processes of a run: for unequal shards a mean of means is not the mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Metrics = Mapping[str, "float | Metric"]


@dataclass(frozen=True)
class Metric:
    """A value, the number of tokens, rollouts or batches it is the mean of, and how values are reduced. ``max`` and ``sum``
    ignore ``weight``."""

    value: float
    weight: float = 1.0
    reduce: Literal["mean", "max", "sum"] = "mean"


class MetricAccumulator:
    """Collects metrics by name until they are flushed."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, name: str, metric: Metric) -> None:
        """Add ``metric`` to ``name``. A mean over nothing, or a nan, is ignored."""
        value, weight = float(metric.value), float(metric.weight)  # a tensor would be sent to the other processes as one
        if value != value or weight <= 0:
            return
        total = Metric(value * weight, weight) if metric.reduce == "mean" else Metric(value, reduce=metric.reduce)
        self._metrics[name] = _join(self._metrics.get(name), total)

    def flush(self, gather: Callable[[list[object]], list[object]]) -> dict[str, float]:
        """Return the reduced metrics of all processes since the last flush; ``gather`` concatenates their lists."""
        shards = gather([self._metrics])
        joined: dict[str, Metric] = {}
        for shard in shards:
            for name, metric in shard.items():  # type: ignore[attr-defined]
                joined[name] = _join(joined.get(name), metric)
        self._metrics = {}
        return {name: metric.value / metric.weight for name, metric in sorted(joined.items())}


def _join(total: Metric | None, metric: Metric) -> Metric:
    """Reduce two totals; for means, ``value`` is the sum of values times weights."""
    if total is None:
        return metric
    if metric.reduce == "max":
        return Metric(max(total.value, metric.value), reduce="max")
    if metric.reduce == "sum":
        return Metric(total.value + metric.value, reduce="sum")
    return Metric(total.value + metric.value, total.weight + metric.weight)
