"""Connections that send nothing, or slowly, or read nothing: they are closed, counted, and in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rewardlab.serving import connections
from rewardlab.serving.connections import ConnectionCounts, bounded_connections
from rewardlab.serving.limits import Limits
from rewardlab.types import Message
from tests.support.servers import running
from tests.support.serving import app_of

LIMITS = Limits(
    header_seconds=0.5, reader_seconds=0.5, connections=8, address_connections=8, header_bytes=16_000, idle_seconds=2
)
BODY = json.dumps({"question": "Which?", "responses": ["a", "b"]}).encode()
POST = b"POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def first(prompt: tuple[Message, ...], draw: int) -> str:
    return "<think>x</think><answer>1</answer>"


@pytest.fixture
def server() -> Iterator[tuple[str, ConnectionCounts]]:
    app = app_of(first)
    counts = app.state.service.connections
    with running(app, **bounded_connections(LIMITS, counts)) as url:
        yield url, counts


class Connect:
    """Opens connections, which are closed when the test ends."""

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()

    def __call__(self, url: str, sent: bytes = b"") -> socket.socket:
        host, _, port = url.removeprefix("http://").partition(":")
        connection = self.stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        connection.sendall(sent)
        return connection


@pytest.fixture
def connect() -> Iterator[Connect]:
    opener = Connect()
    with opener.stack:
        yield opener


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    return data


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def one(connection: socket.socket) -> bytes:
    """The answer of one request to /v1/judge, header and body."""
    data = b""
    while not data.endswith(b"}"):
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: loc", (POST % 5000) + b"{" * 2000])
def test_who_stops_halfway_is_closed(server: tuple[str, ConnectionCounts], connect: Connect, sent: bytes) -> None:
    """With 408 and what was expected; others are answered meanwhile, and /metrics counts it."""
    url, counts = server
    begun = time.monotonic()
    connection = connect(url, sent)
    assert httpx.get(f"{url}/health").status_code == 200
    answer = rest(connection)
    assert time.monotonic() - begun < 8
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"a second or more" in answer if sent.startswith(b"POST") else b"send its header within 0.5 s" in answer
    reason = "body" if sent.startswith(b"POST") else "header"
    assert counts.closed == {reason: 1}
    assert f'rewardlab_connections_closed_total{{reason="{reason}"}} 1.0' in httpx.get(f"{url}/metrics").text


def test_a_body_that_keeps_coming_is_read(server: tuple[str, ConnectionCounts], connect: Connect) -> None:
    """Slowly, but fast enough, for longer than a header may take."""
    url, counts = server
    body = BODY + b" " * 100_000
    connection = connect(url, POST % len(body))
    for start in range(0, len(body), 4000):
        connection.sendall(body[start : start + 4000])
        time.sleep(0.04)
    assert one(connection).startswith(b"HTTP/1.1 200")
    assert not counts.closed


def test_a_burst_buys_no_rest(server: tuple[str, ConnectionCounts], connect: Connect) -> None:
    """Megabytes at once, then nothing: what was sent fast is no reason to be waited for."""
    url, counts = server
    connection = connect(url, (POST % 20_000_000) + b" " * 5_000_000)
    assert rest(connection).startswith(b"HTTP/1.1 408 ")
    assert counts.closed == {"body": 1}


def test_a_connection_is_used_again_and_again(server: tuple[str, ConnectionCounts], connect: Connect) -> None:
    """Each header has the whole time; a pause between requests may be longer, and ends without a word that a client could
    take for an answer."""
    url, counts = server
    connection, request = connect(url), (POST % len(BODY)) + BODY
    for pause in (0.2, 1.0, 0.1):
        connection.sendall(request)
        assert one(connection).startswith(b"HTTP/1.1 200")
        time.sleep(pause)
    for part in (request[:20], request[20:]):
        connection.sendall(part)
        time.sleep(0.3)
    assert one(connection).startswith(b"HTTP/1.1 200")
    assert rest(connection) == b""
    assert not counts.closed


def test_too_many_requests_at_a_time(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every connection has a request a new one is refused, with a sentence and a time to come again."""

    async def wait(request: Request) -> Response:
        await asyncio.sleep(1.2)
        return Response("done")

    monkeypatch.setattr(connections, "IDLE_S", 0.3)

    limits, counts = Limits(connections=3, address_connections=3), ConnectionCounts()
    with running(Starlette(routes=[Route("/", wait)]), **bounded_connections(limits, counts)) as url:
        busy = [connect(url, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") for _ in range(3)]
        answer = rest(connect(url))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 2\r\n" in answer
        assert [rest(connection).startswith(b"HTTP/1.1 200") for connection in busy] == [True] * 3
    assert counts.closed == {"many": 1}


def test_a_probe_is_answered_in_a_flood(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all connections have just come, so that none makes room, a new one is refused, but for a probe's: also where more
    are refused than may wait."""
    monkeypatch.setattr(connections, "MAX_REFUSED", 16)
    monkeypatch.setattr(connections, "IDLE_S", 20.0)  # on a slow machine too
    counts = ConnectionCounts()
    app = app_of(first)
    with running(app, **bounded_connections(Limits(connections=8, address_connections=8), counts)) as url:
        flood = [connect(url, b"GET /") for _ in range(8 + 40)]
        sent = {
            path: connect(url, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path) for path in (b"/health", b"/", b"/ready")
        }
        assert {path: connection.recv(13) for path, connection in sent.items()} == {
            b"/health": b"HTTP/1.1 200 ",
            b"/": b"HTTP/1.1 503 ",
            b"/ready": b"HTTP/1.1 200 ",
        }
        sent[b"/health"].recv(65536)
        sent[b"/health"].sendall(GET)  # the probe's connection is a refused one all the same
        assert rest(sent[b"/health"]).startswith(b"HTTP/1.1 503 ")
        assert counts.closed["displaced"] == 0
        assert flood


def test_a_burst_of_requests_is_answered(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that come all at once, before the first request, do not push each other out: each has its answer, or is
    refused with a sentence."""
    monkeypatch.setattr(connections, "IDLE_S", 20.0)  # on a slow machine too
    limits, counts = Limits(connections=64, address_connections=64), ConnectionCounts()
    with running(Starlette(), **bounded_connections(limits, counts)) as url:
        burst = [connect(url) for _ in range(200)]
        time.sleep(0.2)
        for connection in burst:
            connection.sendall(GET)
        answers = [rest(connection)[:13] for connection in burst]
    assert answers == [b"HTTP/1.1 404 "] * 64 + [b"HTTP/1.1 503 "] * 136
    assert counts.closed == {"many": 136}


def test_as_many_samples_as_a_step_sends(connect: Connect) -> None:
    """2,560 responses, each alone and from one address, of which none is answered before all are there."""
    if 0 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 6000:
        pytest.skip("the process may open too few files for both sides")
    num, all_there = itertools.count(1), asyncio.Event()

    async def wait(request: Request) -> Response:
        if next(num) == 2560:
            all_there.set()
        await all_there.wait()
        return Response()

    counts = ConnectionCounts()
    with running(Starlette(routes=[Route("/", wait)]), **bounded_connections(Limits(), counts)) as url:
        burst = [connect(url, GET) for _ in range(2560)]
        assert all(connection.recv(100).startswith(b"HTTP/1.1 200 ") for connection in burst)
    assert not counts.closed


def test_who_has_been_idle_for_longest_makes_room(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not who came first, and was answered since then."""

    async def answer(request: Request) -> Response:
        return Response()

    monkeypatch.setattr(connections, "IDLE_S", 0.3)
    limits, counts = Limits(connections=4, address_connections=4), ConnectionCounts()
    with running(Starlette(routes=[Route("/", answer)]), **bounded_connections(limits, counts)) as url:
        in_use = connect(url)
        time.sleep(0.1)
        idle = [connect(url) for _ in range(3)]
        time.sleep(0.8)
        request = GET.replace(b"Connection: close\r\n", b"")
        in_use.sendall(request)
        assert in_use.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert rest(connect(url, GET)).startswith(b"HTTP/1.1 200 ")
        assert counts.closed == {"displaced": 1}
        in_use.sendall(request)
        assert in_use.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert rest(idle[0]) == b""


def test_who_reads_nothing_is_closed(connect: Connect) -> None:
    """What is written for it does not stay in memory."""

    async def large(request: Request) -> Response:
        return Response(b"x" * 50_000_000)

    counts = ConnectionCounts()
    with running(Starlette(routes=[Route("/", large)]), **bounded_connections(LIMITS, counts)) as url:
        connection = connect(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        end = time.monotonic() + 10
        while not counts.closed and time.monotonic() < end:
            time.sleep(0.05)
        assert counts.closed == {"reader": 1}
        assert len(rest(connection)) < 50_000_000
        assert len(httpx.get(url).content) == 50_000_000


def test_a_header_without_end(server: tuple[str, ConnectionCounts], connect: Connect) -> None:
    """It is read no further than it may be long."""
    url, _ = server
    connection = connect(url)
    sent = 0
    with contextlib.suppress(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        while sent < 20_000_000:
            connection.sendall(b"X-Filler: " + b"x" * 10_000 + b"\r\n")
            sent += 10_000
    assert sent < 20_000_000
    assert httpx.get(f"{url}/health").status_code == 200


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from rewardlab.serving.connections import fitting_limits
from rewardlab.serving.limits import Limits
print(fitting_limits(Limits()).connections, fitting_limits(Limits(connections=50)).connections)
"""


def test_no_more_connections_than_files() -> None:
    """A process that may open few files takes fewer connections, so that it can go on listening."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["192", "50"]


def test_connections_are_counted(server: tuple[str, ConnectionCounts], connect: Connect) -> None:
    url, counts = server
    connection = connect(url)
    with httpx.Client(base_url=url) as client:
        text: Any = client.get("/metrics").text
        assert "rewardlab_connections 2.0" in text
    connection.close()
    end = time.monotonic() + 5
    while counts.num_open and time.monotonic() < end:
        time.sleep(0.05)
    assert counts.num_open == 0
