"""The process around the application: how it logs, listens and stops.

After SIGTERM it reports not ready while it still answers; then it stops listening and finishes its requests. Requests that are
left when the time is up are answered with an error. The exit status is 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

import uvicorn

from rewardlab.errors import ConfigError, OutputError
from rewardlab.processes import resident_bytes
from rewardlab.serving.limits import Limits
from rewardlab.serving.middleware import LOG as REQUEST_LOG
from rewardlab.serving.service import JudgeService

LOG_FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, and the fields of a request or the message of another record."""

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
        "loggers": {REQUEST_LOG.name: {"level": "INFO"}, "uvicorn": {"level": "INFO"}},
    }


def listening_options(*, root_path: str = "", log_format: str = "text") -> dict[str, Any]:
    """Return uvicorn's options of logging and of the path below which a proxy serves the application. Raise ConfigError."""
    if log_format not in LOG_FORMATS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(LOG_FORMATS)}")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise ConfigError(f"--root-path {root_path}: expected a path such as /judge")
    return {"root_path": root_path, "log_config": log_config(log_format), "access_log": False}


LOG = logging.getLogger("uvicorn.error")
ANSWER_S = 5.0  # to send the last answers
COLLECT_S, MOST_COLLECT_S = 300.0, 1800.0  # between collections of garbage while no request is answered, and at most
GROWN_BYTES = 250_000_000  # of resident memory since the last collection, after which the next one does not wait
MOST_HEADER_BYTES = 65_536
BACKLOG = 16_384  # connections that wait to be accepted: trainers open one for each response at once


class JudgeServer(uvicorn.Server):
    """Serve until SIGTERM, with the limit ``notice``, or Ctrl-C, without; a second signal cuts the notice short. Requests have
    ``drain`` seconds to finish."""

    def __init__(self, config: uvicorn.Config, service: JudgeService) -> None:
        config.timeout_graceful_shutdown = int(service.limits.drain + ANSWER_S) + 1
        super().__init__(config)
        self._service = service
        self._exit_at: float | None = None
        self._collected_at, self._resident = time.monotonic(), resident_bytes()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. uvicorn itself would stop listening at once, and exit with the signal as its status."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
            return
        notice_s = self._service.limits.notice if sig == signal.SIGTERM and self._exit_at is None else 0.0
        self._exit_at = time.monotonic() + notice_s
        self._service.queue.announce_stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.set_threshold(*gc.get_threshold()[:2], 1_000_000)  # on_tick collects the oldest objects
            self._collect_garbage()
            LOG.info("The page to judge by hand is at %s%s/ui", _address(self.config), self.config.root_path)

    async def on_tick(self, counter: int) -> bool:
        if self._exit_at is not None and time.monotonic() >= self._exit_at:
            self.should_exit = True
        if time.monotonic() - self._collected_at > (MOST_COLLECT_S if self.server_state.tasks else COLLECT_S):
            self._collect_garbage()
        elif resident_bytes() - self._resident > GROWN_BYTES:
            gc.collect()  # of what came since then
            self._resident = resident_bytes()
        return await super().on_tick(counter)

    def _collect_garbage(self) -> None:
        """Collect all garbage. With many cached answers it takes half a second, so it is done while no request waits."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._collected_at, self._resident = time.monotonic(), resident_bytes()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.queue.announce_stop()
        self._service.group_buffer.close()
        last = asyncio.create_task(self._end_drain())
        await super().shutdown(sockets)
        last.cancel()

    async def _end_drain(self) -> None:
        await asyncio.sleep(drain_s := self._service.limits.drain)
        LOG.warning("%d jobs are left after %g s; they are refused", self._service.queue.num_waiting, drain_s)
        self._service.queue.stop()


def _address(config: uvicorn.Config) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"


def check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OutputError(f"{host}:{port} cannot be bound ({error.strerror}); choose another --port") from error


def run_server(app: Any, **config: Any) -> None:
    """Serve an application of :func:`rewardlab.serving.app.create_app` until stopped. ``config`` are options of uvicorn, such
    as ``host`` and ``port``."""
    options = connection_options(app.state.limits) | config
    run_until_stopped(JudgeServer(uvicorn.Config(app, log_level="info", **options), app.state.service))


def connection_options(limits: Limits) -> dict[str, Any]:
    """Return uvicorn's options of connections, after raising the number of open files as far as allowed: each takes one. Slow
    clients are bounded by a proxy (configs/launch/nginx.conf).

    h11 takes 0.1 CPU milliseconds a request more than httptools, which does not bound a header, and takes the body of a request
    with the header Upgrade for another request."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bounds = {"h11_max_incomplete_event_size": MOST_HEADER_BYTES, "timeout_keep_alive": limits.idle_seconds}
    return {"http": "h11", "ws": "none", "backlog": BACKLOG, **bounds}


def run_until_stopped(server: uvicorn.Server) -> None:
    """Run a server until SIGTERM or Ctrl-C. Exit with status 1 if it could not start."""
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(1)
