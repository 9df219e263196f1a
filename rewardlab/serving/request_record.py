"""The record of a request: who sends it and what it costs, for its log line, its metrics and its OpenTelemetry spans.

Spans need the package ``opentelemetry`` and its variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ...): one
span for each request, within the caller's trace, and below it the wait and the engine call of each of its jobs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.types import Scope

from rewardlab.errors import ConfigError


@dataclass
class RequestRecord:
    """One request: its id, who sends it, and what it costs.

    ``tenant`` is the name of its key, "" on a server without keys: groups, uploads, cached results and admission are kept apart
    by it. ``idempotency_key`` is the header of that name, equal in a request that is sent again. ``authorization`` is the
    header, to be passed on to another server with the same keys. ``queue_s`` is the longest wait of one of its jobs,
    ``num_tokens`` what the engine read and wrote; a group whose responses are sent one at a time is counted for the request
    that completes it. ``weights`` names the weights that judge it (several if its samples belong to groups of several requests;
    "" for a judge without local weights).
    """

    id: str = ""
    idempotency_key: str = ""
    tenant: str = ""
    authorization: str = field(default="", repr=False)
    queue_s: float = 0.0
    num_tokens: int = 0
    weights: set[str] = field(default_factory=set)


REQUEST: ContextVar[RequestRecord | None] = ContextVar("REQUEST", default=None)


def current_request() -> RequestRecord:
    """Return the record of the current request, an empty one outside of a request."""
    return REQUEST.get() or RequestRecord()


def tenant_of_request() -> str:
    return current_request().tenant


def route_path(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a request below the prefix that a proxy serves the application under (``--root-path``)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServingHistograms:
    """The histograms and counters of one server for Prometheus. A key appears by its name, never by its text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._latency = self._histogram("request_seconds", "from a request to the end of its answer", SECONDS, ["path"])
        self._wait = self._histogram("queue_seconds", "how long a job waited for the engine", SECONDS)
        self._batch = self._histogram("batch_size", "samples in a call of the engine", SEQUENCES)
        self._engine = self._histogram("engine_seconds", "one call of the engine", SECONDS)
        self._tokens = self._histogram("job_tokens", "tokens read and written by the engine for a job", TOKENS)
        self._requests = self._counter("requests", "answers by path, HTTP status and key", ["path", "status", "key"])
        self._key_tokens = self._counter("key_tokens", "tokens read and written by the engine, by key", ["key"])

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(f"rewardlab_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"rewardlab_{name}", text, labels, registry=self.registry)

    def add_request(self, path: str, status: int, key: str, seconds: float, num_tokens: int) -> None:
        """Add an answered request. ``path`` is one of the routes, so that clients cannot invent labels; ``key`` is a name."""
        self._latency.labels(path).observe(seconds)
        self._requests.labels(path, str(status), key).inc()
        self._key_tokens.labels(key).inc(num_tokens)

    def add_batch(self, num_sequences: int, seconds: float) -> None:
        self._batch.observe(num_sequences)
        self._engine.observe(seconds)

    def add_job(self, wait_s: float, num_tokens: int) -> None:
        self._wait.observe(wait_s)
        self._tokens.observe(num_tokens)


try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError:  # an extra
    trace = None  # type: ignore[assignment, unused-ignore]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def export_spans() -> None:
    """Send spans to the collector that the environment names, if it names one. Raise ConfigError for a missing package."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{_ENDPOINTS[1]} is set, and {error.name} is not installed: pip install 'rewardlab[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "rewardlab")}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def request_span(scope: Scope) -> contextlib.AbstractContextManager[Any]:
    """Return a context with the span of a request, None without OpenTelemetry."""
    if trace is None:
        return contextlib.nullcontext()
    parent, method = propagate.extract(Headers(scope=scope)), {"http.request.method": scope["method"]}
    tracer = trace.get_tracer("rewardlab")
    return tracer.start_as_current_span(scope["method"], context=parent, kind=trace.SpanKind.SERVER, attributes=method)


def end_span(span: Any, method: str, path: str, status: int, record: RequestRecord) -> None:
    if span is None:
        return
    span.update_name(f"{method} {path}")
    span.set_attributes(
        {
            "http.route": path,
            "http.response.status_code": status,
            "rewardlab.request_id": record.id,
            "rewardlab.key": record.tenant,
            "rewardlab.queue_seconds": record.queue_s,
            "rewardlab.tokens": record.num_tokens,
        }
    )
    if status >= 500:
        span.set_status(trace.Status(trace.StatusCode.ERROR))


def record_job(histograms: ServingHistograms, wait_s: float, engine_s: float, num_tokens: int) -> None:
    """Record a job of the current request that the engine has just finished: its wait, and its time in the engine, also as
    spans below the request's."""
    record = current_request()
    histograms.add_job(wait_s, num_tokens)
    record.queue_s = max(record.queue_s, wait_s)
    record.num_tokens += num_tokens
    if trace is not None:
        end, tracer = time.time_ns(), trace.get_tracer("rewardlab")
        taken = end - int(1e9 * engine_s)
        tracer.start_span("queue", start_time=taken - int(1e9 * wait_s)).end(taken)
        tracer.start_span("engine", start_time=taken).end(end)
