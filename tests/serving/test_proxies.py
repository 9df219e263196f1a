"""An endpoint behind nginx and Caddy, with the files of configs/launch: what they keep from it, and what they let through."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from eval.endpoints import nginx_command
from rewardlab.serving.auth import Key
from rewardlab.serving.limits import Limits
from rewardlab.serving.middleware import LOG
from rewardlab.serving.server import connection_options
from rewardlab.types import Message
from tests.support.servers import free_port, running
from tests.support.serving import app_of

pytestmark = pytest.mark.slow
LAUNCH = Path(__file__).parents[2] / "configs" / "launch"
PAIR = {"question": "Which?", "responses": ["a", "b"]}
POST = (
    "POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\nX-Request-ID: half\r\n"
    "Content-Type: application/json\r\n"
)
SECONDS = 1  # the time that the proxies give a header and a body here


def nginx(folder: Path, upstream: str, port: int) -> list[str]:
    changes = {
        "127.0.0.1:8000": upstream,
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "judge.example.org;": "localhost;",
        "/etc/ssl/rewardlab/": f"{folder}/",
        "10s;": f"{SECONDS}s;",
        "100m;": "1m;",
    }
    return nginx_command(folder, changes)


def caddy(folder: Path, upstream: str, port: int) -> list[str]:
    text = (LAUNCH / "Caddyfile").read_text()
    for old, new in {
        "127.0.0.1:8000": upstream,
        "\n{\n\tservers": "\n{\n\tadmin off\n\tauto_https disable_redirects\n\tservers",
        "\njudge.example.org {": f"\nhttps://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/cert.pem {folder}/key.pem",
        " 10s\n": f" {SECONDS}s\n",
        "read_body 60s": f"read_body {SECONDS}s",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "Caddyfile").write_text(text)
    return ["caddy", "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]


@dataclass
class Behind:
    """The address behind a proxy, a context that trusts its certificate, the application, and what lets later votes pass."""

    port: int
    trusted: ssl.SSLContext
    app: Any
    go_on: threading.Event

    def client(self, **options: Any) -> httpx.Client:
        headers = {"Authorization": "Bearer secret", **options.pop("headers", {})}
        return httpx.Client(base_url=f"https://localhost:{self.port}", verify=self.trusted, headers=headers, **options)

    def connection(self, sent: str) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection = self.trusted.wrap_socket(raw, server_hostname="localhost")
        connection.sendall(sent.encode())
        return connection


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    for program in (request.param.__name__, "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder, port, go_on = tmp_path_factory.mktemp("proxy"), free_port(), threading.Event()
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names]
    subprocess.run(command, check=True, capture_output=True)

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        if draw and not go_on.wait(5):
            return "nobody let this vote pass"
        return "<think>x</think><answer>1</answer>"

    app = app_of(answer, keys=[Key.of("secret", name="anna")], allowed_hosts=("localhost",))
    trusted = ssl.create_default_context(cafile=f"{folder}/cert.pem")
    with running(app, **connection_options(Limits())) as url:
        proxy = subprocess.Popen(
            request.param(folder, url.removeprefix("http://"), port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            behind = Behind(port, trusted, app, go_on)
            with behind.client() as client:
                while True:
                    assert proxy.poll() is None, "the proxy ended"
                    with suppress(httpx.TransportError):
                        if client.get("/ready").status_code == 200:
                            break
                    time.sleep(0.05)
            yield behind
        finally:
            go_on.set()
            proxy.terminate()
            proxy.wait(10)


def records(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """What the endpoint logged of requests of a name."""
    lines = [record.fields for record in caplog.records if record.name == LOG.name]  # type: ignore[attr-defined]
    return [fields for fields in lines if fields["id"] == name]


def test_a_client_cannot_forge_its_address(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    with behind.client(headers={"X-Forwarded-For": "6.6.6.6", "X-Request-ID": "forged"}) as client:
        answer = client.post("/v1/judge", json=PAIR)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "tie")  # the first shown, in either order
    while not (logged := records(caplog, "forged")):  # written when all is sent
        time.sleep(0.01)
    [fields] = logged
    assert (fields["client"], fields["key"]) == ("127.0.0.1", "anna")


def test_the_page_of_the_server_itself_may_write(behind: Behind) -> None:
    """The proxy passes on the port as well, so that the origin is the server's."""
    with behind.client(headers={"Origin": f"https://localhost:{behind.port}"}) as client:
        assert client.post("/v1/judge", json=PAIR).status_code == 200
        assert client.post("/v1/judge", json=PAIR, headers={"Origin": "https://localhost"}).status_code == 403


@pytest.mark.parametrize("sent", ["", "GET /ready HTTP/1.1\r\nHost: local", POST + "Content-Length: 500\r\n\r\n{"])
def test_who_stops_halfway_is_closed(behind: Behind, caplog: pytest.LogCaptureFixture, sent: str) -> None:
    """Within its time; the endpoint hears nothing of it, or of a body no more than that it ended."""
    caplog.set_level(logging.INFO, LOG.name)
    begun = time.monotonic()
    with behind.connection(sent) as connection, suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    assert time.monotonic() - begun < 8 * SECONDS
    assert {fields["status"] for fields in records(caplog, "half")} <= {400, 499}
    with behind.client() as client:
        assert client.post("/v1/judge", json=PAIR).status_code == 200


def test_a_header_without_end_is_refused(behind: Behind) -> None:
    with behind.client() as client:
        assert client.get("/v1/status", headers={"X-Long": "x" * 100_000}).status_code in (400, 431)
        assert client.post("/v1/judge", json=PAIR).status_code == 200


def test_a_body_is_no_request_of_its_own(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    """Although the request wants to change to another protocol, as Caddy passes on: its answer would be another client's."""
    caplog.set_level(logging.INFO, LOG.name)
    upgrade = {"Connection": "Upgrade", "Upgrade": "h2c"}
    hidden = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: hidden\r\n\r\n"
    with behind.client(headers=upgrade) as client:
        assert client.post("/v1/judge", content=hidden, headers={"Content-Type": "application/json"}).status_code == 422
    with behind.client() as client:
        assert client.post("/v1/judge", json=PAIR, headers=upgrade).status_code == 200
    assert not records(caplog, "hidden")


def test_votes_are_streamed(behind: Behind) -> None:
    """The first is there while the second is not allowed to be drawn."""
    behind.go_on.clear()
    body = PAIR | {"votes": 2, "question": "Which one?"}
    with behind.client() as client, client.stream("POST", "/v1/judge/live", json=body) as response:
        lines = response.iter_lines()
        first = json.loads(next(lines))
        behind.go_on.set()
        rest = [json.loads(line) for line in lines]
    assert first["vote"]["status"] == "ok"
    assert [vote["vote"]["status"] for vote in rest[:-1]] == ["ok"] * 3
    assert rest[-1]["judgment"]["num_valid"] == 4


def test_who_hangs_up_leaves_the_queue(behind: Behind) -> None:
    queue = behind.app.state.service.queue
    behind.go_on.clear()
    body = json.dumps(PAIR | {"votes": 2, "question": "Which is it?"})
    with behind.connection(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}"):
        while not queue._running:
            time.sleep(0.01)
        gone = queue.counts["gone"]
    end = time.monotonic() + 5
    while queue.counts["gone"] == gone and time.monotonic() < end:
        time.sleep(0.01)
    behind.go_on.set()
    assert queue.counts["gone"] == gone + 1
