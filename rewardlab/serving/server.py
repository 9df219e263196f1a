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
import signal
import socket
import ssl
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from rewardlab.errors import ConfigError, OutputError
from rewardlab.serving.connections import bounded_connections
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


def listening_options(
    *, certificate: Path | None = None, private_key: Path | None = None, root_path: str = "", log_format: str = "text"
) -> dict[str, Any]:
    """Return uvicorn's options: TLS with a PEM ``certificate`` (chain) and its ``private_key``, ``root_path``, logging.
    Raise ConfigError for one of certificate and key without the other, or that do not belong together."""
    if log_format not in LOG_FORMATS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(LOG_FORMATS)}")
    if (certificate is None) != (private_key is None):
        raise ConfigError("--ssl-certfile and --ssl-keyfile must be given together")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise ConfigError(f"--root-path {root_path}: expected a path such as /judge")
    options = {"root_path": root_path, "log_config": log_config(log_format), "access_log": False}
    if certificate is None or private_key is None:
        return options
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ssl-certfile {certificate}, --ssl-keyfile {private_key}: cannot be used ({error})") from error
    return options | {"ssl_certfile": str(certificate), "ssl_keyfile": str(private_key)}


LOG = logging.getLogger("uvicorn.error")
ANSWER_S = 5.0  # to send the last answers


class JudgeServer(uvicorn.Server):
    """Serve until SIGTERM, with the limit ``notice``, or Ctrl-C, without; a second signal cuts the notice short. Requests have
    ``drain`` seconds to finish."""

    def __init__(self, config: uvicorn.Config, service: JudgeService) -> None:
        config.timeout_graceful_shutdown = int(service.limits.drain + ANSWER_S) + 1
        super().__init__(config)
        self._service = service
        self._exit_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. uvicorn itself would stop listening at once, and exit with the signal as its status."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
            return
        notice_s = self._service.limits.notice if sig == signal.SIGTERM and self._exit_at is None else 0.0
        self._exit_at = time.monotonic() + notice_s
        self._service.queue.announce_stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn has no option for the time of a TLS handshake, before which a connection is not counted."""
        if self.config.ssl is not None:
            loop, seconds = asyncio.get_running_loop(), self._service.limits.header_seconds
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=seconds)  # type: ignore[method-assign]
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # a collection of all that was loaded would hold every request for a quarter of a second
            LOG.info("The page to judge by hand is at %s%s/ui", _address(self.config), self.config.root_path)

    async def on_tick(self, counter: int) -> bool:
        if self._exit_at is not None and time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)

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
    return f"{'https' if config.is_ssl else 'http'}://{host}:{config.port}"


def check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OutputError(f"{host}:{port} cannot be bound ({error.strerror}); choose another --port") from error


def run_server(app: Any, **config: Any) -> None:
    """Serve an application of :func:`rewardlab.serving.app.create_app` until stopped, with its limits on connections.
    ``config`` are other options of uvicorn, such as ``host`` and ``port``."""
    connections = bounded_connections(app.state.limits, app.state.service.connections)
    run_until_stopped(JudgeServer(uvicorn.Config(app, log_level="info", **connections, **config), app.state.service))


def run_until_stopped(server: uvicorn.Server) -> None:
    """Run a server until SIGTERM or Ctrl-C. Exit with status 1 if it could not start."""
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(1)
