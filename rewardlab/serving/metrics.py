"""``/metrics`` for Prometheus: what the queue and the engine have done, read when asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from rewardlab.serving.queue import COUNTS
from rewardlab.serving.service import JudgeService
from rewardlab.types import VerdictStatus


class ServiceCollector:
    """Reads the counters of a service."""

    def __init__(self, service: JudgeService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        batcher, cohorts = self._service.batcher, self._service.cohorts
        for name, told in COUNTS.items():
            yield CounterMetricFamily(f"rewardlab_{name}", told, value=batcher.counts[name])
        votes = CounterMetricFamily("rewardlab_votes", "samples by what was read in them", labels=["status"])
        for status in VerdictStatus:
            votes.add_metric([status.value], batcher.statuses[status.value])
        yield votes
        yield CounterMetricFamily(
            "rewardlab_cohorts_dissolved", "cohorts that did not fill in time", value=cohorts.num_dissolved
        )
        yield GaugeMetricFamily("rewardlab_waiting", "pairs in the queue", value=batcher.num_waiting)
        yield GaugeMetricFamily("rewardlab_cohort_members_waiting", "responses that wait for others", value=cohorts.num_waiting)
        yield GaugeMetricFamily(
            "rewardlab_batch_seconds", "moving average of one call of the engine", value=batcher.batch_seconds
        )
        yield GaugeMetricFamily("rewardlab_ready", "whether a request is likely to be answered", value=float(batcher.ready))


def metrics_text(service: JudgeService) -> bytes:
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))  # type: ignore[arg-type]
    return generate_latest(registry)
