"""Connections of a server: how many, how long each may take to say what it wants, and how long to take the answer.

A client that sends nothing, half a header or half a body, or does not read what it asked for, is closed. Where there are as
many connections as there may be, a new one takes the place of the one that has waited longest without a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rewardlab.serving.limits import Limits

LOG = logging.getLogger("uvicorn.error")
SWEEP_S = 0.25  # between two looks at all connections
OTHER_FILES = 64  # that a server opens beside its connections, at least
# Why a connection was closed -> what a client hears of it.
REASONS = {
    "header": (408, "no request came in time; send its header within {header_seconds:g} s"),
    "body": (408, "the body came too slowly; send {body_rate:,} bytes a second or more"),
    "reader": (0, ""),  # nobody reads what it would be told
    "displaced": (408, "other connections have requests, and this one had none"),
    "many": (503, "too many connections; close some, or try again in 2 s"),
}


@dataclass
class ConnectionCounts:
    """What /metrics tells: how many are open, and how many were closed for each of :data:`REASONS`."""

    num_open: int = 0
    closed: Counter[str] = field(default_factory=Counter)


def fitting_limits(limits: Limits) -> Limits:
    """Return the limits with no more connections than the process may open files, whose number is raised as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    most = max(1, soft - max(OTHER_FILES, soft // 4))
    LOG.warning("the process may open %d files: at most %d connections are taken (ulimit -n)", soft, most)
    return replace(limits, connections=most)


class ConnectionGuard:
    """All connections of a server, and a sweep over them."""

    def __init__(self, limits: Limits, counts: ConnectionCounts) -> None:
        self.limits, self.counts = limits, counts
        self._connections: dict[BoundedConnection, None] = {}  # in the order in which they came
        self._by_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: BoundedConnection) -> None:
        """Take a connection, in the place of another one if need be, or close it."""
        address = connection.address
        if self._by_address[address] >= self.limits.address_connections:
            others = [other for other in self._connections if other.address == address]
        elif len(self._connections) >= self.limits.connections:
            others = list(self._connections)
        else:
            others = []
        self._connections[connection] = None
        self._by_address[address] += 1
        self.counts.num_open += 1
        if others:
            idle = next((other for other in others if other.is_without_request), None)
            (idle or connection).close("displaced" if idle else "many")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def remove(self, connection: BoundedConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.counts.num_open -= 1
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            if reason := connection.overdue(now, self.limits):
                connection.close(reason)
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._connections else None


class BoundedConnection(H11Protocol):
    """One connection. Subclasses of :func:`bounded_connections` know their guard."""

    guard: ConnectionGuard

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address = ""
        self._phase: tuple[str, int] = ("", 0)
        self._since, self._received, self._unread = time.monotonic(), 0, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.guard.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)

    @property
    def is_without_request(self) -> bool:
        """Whether neither a request nor its answer is on the way."""
        return not self.transport.is_closing() and self._phase_now()[0] == "header"

    def _phase_now(self) -> tuple[str, int]:
        """Return what the connection waits for, and the number of the request that it is about."""
        number = id(self.cycle)
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return "reader", number
        if self.cycle is None or self.cycle.response_complete:
            return "header", number
        return ("body" if self.conn.their_state is h11.SEND_BODY else "answer"), number

    def overdue(self, now: float, limits: Limits) -> str:
        """Return which of :data:`REASONS` there is to close the connection; "" for none."""
        phase, unread = self._phase_now(), self.transport.get_write_buffer_size()
        if phase != self._phase or (phase[0] == "reader" and unread != self._unread):
            self._phase, self._since, self._received = phase, now, 0
        self._unread = unread
        seconds, allowed = now - self._since, limits.header_seconds
        match phase[0]:
            case "header":
                return "header" if seconds > allowed else ""
            case "body" if self.flow.read_paused:  # it is we who read no further
                self._since = now
            case "body" if seconds > allowed:
                if self._received < limits.body_rate * seconds:
                    return "body"
                self._since, self._received = now, 0  # the next seconds count anew: what came fast may not stop for long
            case "reader":
                return "reader" if seconds > limits.reader_seconds else ""
        return ""

    def close(self, reason: str) -> None:
        """Close the connection, with a sentence where an answer may still be sent."""
        self.guard.counts.closed[reason] += 1
        code, sentence = REASONS[reason]
        has_answer = self.cycle is not None and not self.cycle.response_complete and self.cycle.response_started
        if reason == "reader" or has_answer:
            self.transport.abort()
            return
        limits = self.guard.limits
        sentence = sentence.format(header_seconds=limits.header_seconds, body_rate=int(limits.body_rate))
        # An unused connection is closed without a word, as every server does: a client that is about to send a request
        # on it would take the sentence for the answer.
        if reason != "displaced" and (reason != "header" or self._received or self.cycle is None):
            self.transport.write(_answer(code, sentence))
        self.transport.close()


def _answer(code: int, sentence: str) -> bytes:
    body = json.dumps({"error": sentence, "status": "connection"}).encode()
    head = f"HTTP/1.1 {code} {'Request Timeout' if code == 408 else 'Service Unavailable'}\r\n"
    retry = "Retry-After: 2\r\n" if code == 503 else ""
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    return head.encode() + body


def bounded_connections(limits: Limits, counts: ConnectionCounts) -> dict[str, Any]:
    """Return uvicorn's options for a server whose connections are held to ``limits``, and counted."""
    limits = fitting_limits(limits)
    protocol = type("Connection", (BoundedConnection,), {"guard": ConnectionGuard(limits, counts)})
    return {"http": protocol, "ws": "none", "h11_max_incomplete_event_size": limits.header_bytes}
