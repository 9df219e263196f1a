"""``/metrics`` for Prometheus: counters of the queue and the engine, read at each scrape, and histograms."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from rewardlab.rewards.policy_signs.trends import TRENDS
from rewardlab.serving.connections import REASONS
from rewardlab.serving.queue import COUNTS
from rewardlab.serving.service import JudgeService
from rewardlab.types import VerdictStatus


class ServiceCollector:
    """Reads the counters of a service."""

    def __init__(self, service: JudgeService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        queue, groups = self._service.queue, self._service.group_buffer
        for name, description in COUNTS.items():
            yield CounterMetricFamily(f"rewardlab_{name}", description, value=queue.counts[name])
        votes = CounterMetricFamily("rewardlab_votes", "samples by verdict status", labels=["status"])
        for status in VerdictStatus:
            votes.add_metric([status.value], queue.statuses[status.value])
        yield votes
        yield CounterMetricFamily("rewardlab_groups_dissolved", "groups that did not fill in time", value=groups.num_dissolved)
        connections = self._service.connections
        yield GaugeMetricFamily("rewardlab_connections", "open connections", value=connections.num_open)
        closed = CounterMetricFamily("rewardlab_connections_closed", "connections closed by a limit", labels=["reason"])
        for reason in REASONS:
            closed.add_metric([reason], connections.closed[reason])
        yield closed
        yield GaugeMetricFamily("rewardlab_waiting", "pairs in the queue", value=queue.num_waiting)
        yield GaugeMetricFamily(
            "rewardlab_group_members_waiting", "responses that wait for their group", value=groups.num_waiting
        )
        yield GaugeMetricFamily(
            "rewardlab_batch_seconds", "moving average of one call of the engine", value=queue.batch_seconds
        )
        yield from self._signs()
        versions = self._service.queue.versions
        yield GaugeMetricFamily("rewardlab_judge_version", "number of the judge since the start", value=versions.newest.number)
        yield GaugeMetricFamily(
            "rewardlab_judges_draining", "replaced judges with unanswered requests", value=versions.num_draining
        )
        yield GaugeMetricFamily("rewardlab_ready", "whether a request is likely to be answered", value=float(queue.ready))

    def _signs(self) -> Iterator[Metric]:
        """Yield the last value of each measure of each key's answers, and which are policy signs."""
        signs = self._service.answer_signs
        answers = GaugeMetricFamily(
            "rewardlab_answers", "measures of the last rewarded answers, by key", labels=["key", "measure"]
        )
        present = GaugeMetricFamily("rewardlab_policy_sign", "1 if the answers of a key show the sign", labels=["key", "sign"])
        for tenant in signs.tenants:
            measures, names = signs.measures(tenant), signs.present(tenant)
            for name, (_, last) in measures.items():
                answers.add_metric([tenant, name], last)
            for name, trend in TRENDS.items():
                if trend.metric in measures:
                    present.add_metric([tenant, name], float(name in names))
        yield from (answers, present)
        checks = CounterMetricFamily("rewardlab_sign_checks", "repeated comparisons for policy signs", labels=["outcome"])
        for outcome in ("answered", "failed", "skipped"):
            checks.add_metric([outcome], signs.num_checks[outcome])
        yield checks
        lines = CounterMetricFamily("rewardlab_sign_windows", "windows of answers for policy signs", labels=["outcome"])
        for outcome in ("read", "failed", "skipped"):
            lines.add_metric([outcome], signs.num_lines[outcome])
        yield lines


def metrics_text(service: JudgeService) -> bytes:
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry) + generate_latest(service.histograms.registry)
