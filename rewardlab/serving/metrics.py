"""``/metrics`` for Prometheus: counters of the queue and the engine, read at each scrape, and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from rewardlab.rewards.policy_signs import TRENDS
from rewardlab.serving.connections import REASONS
from rewardlab.serving.queue import COUNTS
from rewardlab.serving.service import JudgeService
from rewardlab.types import VerdictStatus


class ServiceCollector:
    """Reads the counters of a service."""

    def __init__(self, service: JudgeService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        queue, groups, connections = self._service.queue, self._service.group_buffer, self._service.connections
        for name, description in COUNTS.items():
            yield CounterMetricFamily(f"rewardlab_{name}", description, value=queue.counts[name])
        votes = {status.value: queue.statuses[status.value] for status in VerdictStatus}
        yield _by_label("votes", "samples by verdict status", "status", votes)
        yield CounterMetricFamily("rewardlab_groups_dissolved", "groups that did not fill in time", value=groups.num_dissolved)
        closed = {reason: connections.closed[reason] for reason in REASONS}
        yield _by_label("connections_closed", "connections closed by a limit", "reason", closed)
        for name, description, value in (
            ("connections", "open connections", connections.num_open),
            ("waiting", "pairs in the queue", queue.num_waiting),
            ("group_members_waiting", "responses that wait for their group", groups.num_waiting),
            ("batch_seconds", "moving average of one call of the engine", queue.batch_seconds),
            ("judge_version", "number of the judge since the start", queue.versions.newest.number),
            ("judges_draining", "replaced judges with unanswered requests", queue.versions.num_draining),
            ("ready", "whether a request is likely to be answered", float(queue.ready)),
        ):
            yield GaugeMetricFamily(f"rewardlab_{name}", description, value=value)
        yield from self._signs()

    def _signs(self) -> Iterator[Metric]:
        """Yield the last value of each measure of each key's answers, and which are policy signs."""
        signs = self._service.answer_signs
        answers = GaugeMetricFamily("rewardlab_answers", "measures of the last rewarded answers", labels=["key", "measure"])
        present = GaugeMetricFamily("rewardlab_policy_sign", "1 if the answers of a key show the sign", labels=["key", "sign"])
        for tenant in signs.tenants:
            measures, names = signs.measures(tenant), signs.present(tenant)
            for name, (_, last) in measures.items():
                answers.add_metric([tenant, name], last)
            for name, trend in TRENDS.items():
                if trend.metric in measures:
                    present.add_metric([tenant, name], float(name in names))
        yield from (answers, present)
        checks = {outcome: signs.num_checks[outcome] for outcome in ("answered", "failed", "skipped")}
        yield _by_label("sign_checks", "repeated comparisons for policy signs", "outcome", checks)
        windows = {outcome: signs.num_lines[outcome] for outcome in ("read", "failed", "skipped")}
        yield _by_label("sign_windows", "windows of answers for policy signs", "outcome", windows)


def _by_label(name: str, description: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rewardlab_{name}", description, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def metrics_text(service: JudgeService) -> bytes:
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry) + generate_latest(service.histograms.registry)
