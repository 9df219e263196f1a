"""Limits on connections: their number, and the time that each may take to send a request and to read the answer.

A connection that sends nothing, half a header or half a body, or does not read its answer, is closed. If all connections are in
use, a new one displaces the one that has been idle for longest, for a second at least: its next request may be on the way. If
none is idle, the new one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rewardlab.serving.limits import Limits

LOG = logging.getLogger("uvicorn.error")
SWEEP_S = 0.25  # between two looks at all connections
IDLE_S = 1.0  # without a request, before a new connection may displace an old one
MAX_REFUSED = 1024  # refused connections that wait for their request, to be answered 503
PROBES = (b"GET /health ", b"GET /ready ")  # answered on refused connections, too: a full server must not be restarted
OTHER_FILES = MAX_REFUSED + 1024  # open files of a server beside its connections
# Reason for closing a connection -> HTTP status and sentence for the client.
REASONS = {
    "header": (408, "no request came in time; send its header within {header_seconds:g} s"),
    "body": (408, "the body came too slowly; send {body_rate:,} bytes a second or more"),
    "reader": (0, ""),  # the client does not read
    "displaced": (0, ""),  # closed as any server closes an unused connection
    "many": (503, "too many connections; close some, or try again in 2 s"),
}


@dataclass
class ConnectionCounts:
    """The counts of /metrics: open connections, and closed ones by :data:`REASONS`."""

    num_open: int = 0
    closed: Counter[str] = field(default_factory=Counter)


def fitting_limits(limits: Limits) -> Limits:
    """Return the limits with no more connections than the process may open files, after raising that number as far as allowed.
    If files are few, three quarters of them are for connections."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(1, soft - min(OTHER_FILES, soft // 4))
    if soft == resource.RLIM_INFINITY or most >= limits.connections:
        return limits
    LOG.warning("the process may open %d files, so at most %d connections are accepted (ulimit -n)", soft, most)
    return replace(limits, connections=most)


class ConnectionGuard:
    """All connections of a server, and a regular sweep over them; ``clock`` is the time of the last sweep."""

    def __init__(self, limits: Limits, counts: ConnectionCounts) -> None:
        self.limits, self.counts, self.clock = limits, counts, time.monotonic()
        self._max_refused = min(
            MAX_REFUSED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8
        )  # half of the remaining files if they are few
        self._connections: dict[BoundedConnection, None] = {}  # in the order in which they came
        self._refused: dict[BoundedConnection, float] = {}  # and when
        self._by_address: Counter[str] = Counter()
        self._idle: defaultdict[str | None, deque[BoundedConnection]] | None = None  # by address, and all; of this sweep
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: BoundedConnection) -> None:
        """Accept a connection, displace another one for it, or refuse it."""
        address = connection.address
        if self._by_address[address] >= self.limits.address_connections:
            has_room = self._displace(address)
        else:
            has_room = len(self._connections) < self.limits.connections or self._displace(None)
        self.counts.num_open += 1
        if has_room:
            self._connections[connection] = None
            self._by_address[address] += 1
        else:
            self._refused[connection] = self.clock
            if len(self._refused) > self._max_refused:  # the one that had most time to send its request
                oldest = next(iter(self._refused))
                del self._refused[oldest]
                oldest.close("many")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def remove(self, connection: BoundedConnection) -> None:
        self.counts.num_open -= 1
        self._refused.pop(connection, None)
        if connection in self._connections:
            del self._connections[connection]
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def is_refused(self, connection: BoundedConnection) -> bool:
        return connection in self._refused

    def _displace(self, address: str | None) -> bool:
        """Close the connection, of one address or of all, that has been idle for longest; return whether there was one."""
        if self._idle is None:  # computed once per sweep, however many connections come
            self._idle = defaultdict(deque)
            idle = [(seconds, other) for other in self._connections if (seconds := other.idle_seconds()) >= IDLE_S]
            for _, other in sorted(idle, key=lambda pair: -pair[0]):
                self._idle[other.address].append(other)
                self._idle[None].append(other)
        while self._idle[address]:
            other = self._idle[address].popleft()
            if other.idle_seconds() >= IDLE_S:
                other.close("displaced")
                return True
        return False

    def _sweep(self) -> None:
        self.clock, self._idle = time.monotonic(), None
        for connection in list(self._connections):
            if reason := connection.overdue(self.limits):
                connection.close(reason)
        for connection in [one for one, since in self._refused.items() if self.clock - since >= IDLE_S]:
            connection.close("many")
        any_left = self._connections or self._refused
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if any_left else None


class BoundedConnection(H11Protocol):
    """One connection. :func:`bounded_connections` makes subclasses with a guard."""

    guard: ConnectionGuard

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address = ""
        self._phase: tuple[str, int] = ("", 0)
        self._since, self._received, self._unread = self.guard.clock, 0, 0

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
        is_probe = data.startswith(PROBES) and self.cycle is None
        if self.guard.is_refused(self) and not is_probe:  # at once: closing a socket with unread data would drop the answer
            self.close("many")
            return
        self._received += len(data)
        super().data_received(data)

    def idle_seconds(self) -> float:
        """Return the seconds since the last request or answer."""
        return self.guard.clock - self._since if self._look() in ("header", "idle") else 0.0

    def _phase_now(self) -> tuple[str, int]:
        """Return what the connection waits for, and an id of its current request."""
        number = id(self.cycle)
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return "reader", number
        if self.cycle is None or self.cycle.response_complete:
            # uvicorn itself closes a connection that is idle between requests (timeout_keep_alive).
            return ("header" if self.cycle is None or self.conn.trailing_data[0] else "idle"), number
        return ("body" if self.conn.their_state is h11.SEND_BODY else "answer"), number

    def _look(self) -> str:
        """Return what the connection waits for, and update since when (:attr:`_since`)."""
        phase, unread = self._phase_now(), self.transport.get_write_buffer_size()
        if phase != self._phase or (phase[0] == "reader" and unread != self._unread):
            self._phase, self._since, self._received = phase, self.guard.clock, 0
        self._unread = unread
        return phase[0]

    def overdue(self, limits: Limits) -> str:
        phase, now = self._look(), self.guard.clock
        seconds, allowed = now - self._since, limits.header_seconds
        match phase:
            case "header":
                return "header" if seconds > allowed else ""
            case "body" if self.flow.read_paused:  # the server itself has paused reading
                self._since = now
            case "body" if seconds > allowed:
                if self._received < limits.body_rate * seconds:
                    return "body"
                self._since, self._received = now, 0  # each period counts separately: a fast start does not allow a long pause
            case "reader":
                return "reader" if seconds > limits.reader_seconds else ""
        return ""

    def close(self, reason: str) -> None:
        """Close the connection, with an error if an answer may still be sent."""
        self.guard.counts.closed[reason] += 1
        code, sentence = REASONS[reason]
        has_answer = self.cycle is not None and not self.cycle.response_complete and self.cycle.response_started
        if reason == "reader" or has_answer:
            self.transport.abort()
            return
        limits = self.guard.limits
        sentence = sentence.format(header_seconds=limits.header_seconds, body_rate=int(limits.body_rate))
        # No sentence if the client may be sending a request: it would take the sentence for its answer.
        if sentence:
            self.transport.write(_answer(code, sentence))
        self.transport.close()


def _answer(code: int, sentence: str) -> bytes:
    body = json.dumps({"error": sentence, "status": "connection"}).encode()
    head = f"HTTP/1.1 {code} {'Request Timeout' if code == 408 else 'Service Unavailable'}\r\n"
    retry = "Retry-After: 2\r\n" if code == 503 else ""
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    return head.encode() + body


def bounded_connections(limits: Limits, counts: ConnectionCounts) -> dict[str, Any]:
    """Return uvicorn's options for a server with ``limits`` on connections, which ``counts`` counts."""
    limits = fitting_limits(limits)
    protocol = type("Connection", (BoundedConnection,), {"guard": ConnectionGuard(limits, counts)})
    return {
        "http": protocol,
        "ws": "none",
        "h11_max_incomplete_event_size": limits.header_bytes,
        "backlog": limits.connections,
        "timeout_keep_alive": limits.idle_seconds,
    }
