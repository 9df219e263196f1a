"""Each request has an id and a line in the log: what was asked under which key's name, how it ended, what it took."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardlab.serving.histograms import ServingHistograms
from rewardlab.serving.request_context import CHECKS, REQUEST, TENANT, RequestAccount, route_path
from rewardlab.serving.tracing import job_span, request_span

LOG = logging.getLogger("rewardlab.requests")
LOG_FORMATS = ("text", "json")
FREQUENT_PATHS = ("/health", "/ready", "/metrics")  # asked every few seconds by monitoring; logged where they fail
CLIENT_GONE = 499  # nginx's number for a client that did not wait for the answer
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class RequestLog:
    """ASGI middleware: give each request an id, the client's own ``X-Request-ID`` where that is a short plain word, send it
    back, and log and measure the request when it is answered."""

    def __init__(self, app: ASGIApp, histograms: ServingHistograms) -> None:
        self._app, self._histograms = app, histograms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = RequestAccount(_id_of(scope))
        REQUEST.set(account)
        start, status, key = time.perf_counter(), CLIENT_GONE, ""

        async def send_with_id(message: Message) -> None:
            nonlocal status, key
            if message["type"] == "http.response.start":
                # Read here, in the context of the inner middleware that has checked the key.
                status, key = message["status"], TENANT.get()
                MutableHeaders(scope=message)["X-Request-ID"] = account.id
                if account.weights:
                    MutableHeaders(scope=message)["X-Judge-Weights"] = ", ".join(sorted(account.weights))
                if account.signs:
                    MutableHeaders(scope=message)["X-Policy-Signs"] = ", ".join(sorted(account.signs))
            await send(message)

        with request_span(scope) as span:
            try:
                await self._app(scope, receive, send_with_id)
            except Exception:  # the boundary: whoever answers it, it is a request that failed
                status = 500
                raise
            finally:
                seconds = time.perf_counter() - start
                path = path_of(scope)
                self._histograms.add_request(path, status, key, seconds, account.num_tokens)
                span.end(path, status, key, account)
                _log(scope, path, status, key, seconds, account)


def _id_of(scope: Scope) -> str:
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def path_of(scope: MutableMapping[str, Any]) -> str:
    """Return the path among those of the application that was asked for, or "other"."""
    path = route_path(scope)
    known = any(getattr(route, "path", None) == path for route in scope["app"].routes)
    return path if known else "other"


def _log(scope: Scope, path: str, status: int, key: str, seconds: float, account: RequestAccount) -> None:
    level = logging.DEBUG if path in FREQUENT_PATHS and status < 500 else logging.INFO
    fields = {
        "id": account.id,
        "client": (scope.get("client") or [""])[0],
        "key": key,
        "method": scope["method"],
        "path": quote(scope["path"][:200]),  # whatever a client sends, it is one line
        "status": status,
        "ms": round(1000 * seconds, 1),
        "queue_ms": round(1000 * account.queue_s, 1),
        "tokens": account.num_tokens,
    }
    LOG.log(level, "%s", " ".join(f"{name}={value}" for name, value in fields.items()), extra={"fields": fields})


def record_weights(weights: str) -> None:
    """Record by which weights the request is judged; "" where they have no name."""
    if weights and (account := REQUEST.get()):
        account.weights.add(weights)


def record_signs(names: Iterable[str]) -> None:
    """Record signs that a policy pleases the judge in the answers of the key that asks."""
    if account := REQUEST.get():
        account.signs.update(names)


def record_job(histograms: ServingHistograms, wait_s: float, engine_s: float, num_tokens: int) -> None:
    """Record a job that has just come back to its request: how long it waited, and how long the engine had it."""
    if TENANT.get() == CHECKS:
        return
    histograms.add_job(wait_s, num_tokens)
    if account := REQUEST.get():
        account.add(wait_s, num_tokens)
    job_span(wait_s, engine_s)


class JsonFormatter(logging.Formatter):
    """A JSON object a line: time (UTC), level, logger, and the fields of a request or the message of anything else."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{at}.{int(record.msecs):03d}Z", "level": record.levelname, "logger": record.name}
        line |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_config(log_format: str) -> dict[str, Any]:
    """Return the configuration of all logging of a server (:func:`logging.config.dictConfig`): lines of text or of JSON on
    standard error."""
    text = {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": JsonFormatter} if log_format == "json" else text},
        "handlers": {"lines": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "root": {"handlers": ["lines"]},
        "loggers": {LOG.name: {"level": "INFO"}, "uvicorn": {"level": "INFO"}},
    }
