"""Spans of OpenTelemetry, where its package is installed: one for each request, within the trace of whoever asks, and below it
the wait and the engine's call of each of its jobs.

Where they go is told by OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ...); without
them nothing is recorded.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from starlette.types import Scope

from rewardlab.errors import ConfigError
from rewardlab.serving.request_context import RequestAccount

try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError:  # an extra
    trace = None  # type: ignore[assignment, unused-ignore]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def export_spans() -> None:
    """Send spans to the collector that the environment names, if it names one. Raise ConfigError where a package is missing."""
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


class RequestSpan:
    """The span of a request, or nothing."""

    def __init__(self, span: Any = None, method: str = "") -> None:
        self._span, self._method = span, method

    def end(self, path: str, status: int, key: str, account: RequestAccount) -> None:
        """Say how the request ended."""
        if self._span is None:
            return
        self._span.update_name(f"{self._method} {path}")
        self._span.set_attributes(
            {
                "http.route": path,
                "http.response.status_code": status,
                "rewardlab.request_id": account.id,
                "rewardlab.key": key,
                "rewardlab.queue_seconds": account.queue_s,
                "rewardlab.tokens": account.num_tokens,
            }
        )
        if status >= 500:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR))


@contextlib.contextmanager
def request_span(scope: Scope) -> Iterator[RequestSpan]:
    """Have a span of a request around what is within."""
    if trace is None:
        yield RequestSpan()
        return
    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    with trace.get_tracer("rewardlab").start_as_current_span(
        scope["method"],
        context=propagate.extract(carrier),
        kind=trace.SpanKind.SERVER,
        attributes={"http.request.method": scope["method"]},
    ) as span:
        yield RequestSpan(span, scope["method"])


def job_span(wait_s: float, engine_s: float) -> None:
    """Record, below the span of the current request, a job that has just come back after it waited and was run."""
    if trace is None:
        return
    end = time.time_ns()
    tracer, taken = trace.get_tracer("rewardlab"), end - int(1e9 * engine_s)
    tracer.start_span("queue", start_time=taken - int(1e9 * wait_s)).end(taken)
    tracer.start_span("engine", start_time=taken).end(end)
