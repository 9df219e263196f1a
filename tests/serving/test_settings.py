"""`rewardlab serve` as it is run in earnest: a process with its options in a file and in variables, TLS, and JSON for a log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.browser import LOOPBACK, accepted_hosts
from rewardlab.serving.connections import bounded_connections
from rewardlab.serving.limits import Limits
from rewardlab.serving.listening import listening_options
from rewardlab.serving.server import JudgeServer, StopTimes
from tests.support.openai_server import ChatServer, chat_server
from tests.support.servers import free_port


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of this machine, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return cert, key


@contextmanager
def server_process(command: list[str], variables: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run `rewardlab`, and yield it with what it said, when it listens."""
    start = [sys.executable, "-m", "rewardlab.cli", *command]
    with subprocess.Popen(start, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [next(process.stderr)]
        while "running on" not in lines[-1]:
            lines.append(next(process.stderr))
        try:
            yield process, lines
        finally:
            process.kill()


@pytest.mark.slow
def test_a_handshake_has_its_time(certificate: tuple[Path, Path]) -> None:
    """Who connects and does not begin to speak TLS is closed; who does is answered."""
    cert, key = certificate
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<answer>1</answer>"), load_template("plain"))
    limits, port = Limits(header_seconds=0.5), free_port()
    web = create_app(judge, limits=limits)
    options: dict[str, Any] = bounded_connections(limits, web.state.service.connections)
    config = uvicorn.Config(web, port=port, log_level="error", ssl_certfile=cert, ssl_keyfile=key, **options)
    server = JudgeServer(config, web.state.service, StopTimes(0, 1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        assert silent.recv(1) == b""
    trusted = ssl.create_default_context(cafile=str(cert))
    assert httpx.get(f"https://localhost:{port}/health", verify=trusted).status_code == 200
    server.should_exit = True
    thread.join(10)


@pytest.mark.slow
def test_a_process_with_settings_of_three_kinds(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """What the command line says counts before a variable, and that before the file; all that it logs is JSON, over TLS."""
    cert, key = certificate
    (tmp_path / "keys").write_text("secret name=anna\n")
    port = free_port()
    with chat_server(ChatServer()) as engine:
        settings = {"judge": f"openai:file@{engine}", "port": 1, "host": "127.0.0.9", "keys": str(tmp_path / "keys")}
        settings |= {"ssl-certfile": str(cert), "ssl_keyfile": str(key), "log-format": "json", "allowed-host": "judge.example"}
        (tmp_path / "serve.yaml").write_text(json.dumps(settings))
        variables = {"REWARDLAB_SERVE_CONFIG": str(tmp_path / "serve.yaml"), "REWARDLAB_SERVE_HOST": "127.0.0.1"}
        command = ["serve", "--port", str(port), "--notice", "0"]
        with server_process(command, variables) as (process, lines):
            trusted = ssl.create_default_context(cafile=str(cert))
            with httpx.Client(base_url=f"https://localhost:{port}", verify=trusted) as client:
                client.headers["Authorization"] = "Bearer secret"
                judged = client.post("/v1/judge", json={"question": "Which?", "responses": ["a", "b"]})
                host = client.get("/v1/status", headers={"Host": "judge.example"}).status_code
                stranger = client.get("/v1/status", headers={"Host": "evil.example"}).status_code
            process.send_signal(signal.SIGTERM)
            lines += process.stderr or ()
            assert process.wait(30) == 0
    assert (judged.status_code, judged.json()["judge"], host, stranger) == (200, f"openai:file@{engine}", 200, 421)
    records = [json.loads(line) for line in lines]
    [request] = [record for record in records if record.get("path") == "/v1/judge"]
    assert (request["key"], request["status"], request["id"]) == ("anna", 200, judged.headers["X-Request-ID"])
    assert request["tokens"] == 220


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grop-size: 3", "--group-size?"),
        ("- judge", "expected a mapping"),
        ("judge: [", "cannot be read"),
    ],
)
def test_files_of_settings_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """Before anything is opened."""
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    error = CliRunner().invoke(app, ["serve", "--judge", "demo", "--config", str(path)]).exception
    assert isinstance(error, ConfigError)
    assert said in str(error)


def test_a_variable_of_no_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is misspelt would count for nothing."""
    monkeypatch.setenv("REWARDLAB_SERVE_ALOWED_HOST", "x")
    error = CliRunner().invoke(app, ["serve", "--judge", "demo"]).exception
    assert isinstance(error, ConfigError)
    assert "--allowed-host?" in str(error)


def test_how_it_cannot_listen(tmp_path: Path) -> None:
    """Half a pair, what is no certificate, a path that is none, a format of no log."""
    path = tmp_path / "cert.pem"
    path.write_text("no certificate")
    for options, said in [
        ({"certificate": path}, "belong together"),
        ({"certificate": path, "private_key": path}, "cannot be used"),
        ({"root_path": "judge"}, "such as /judge"),
        ({"log_format": "xml"}, "text or json"),
    ]:
        with pytest.raises(ConfigError, match=said):
            listening_options(**options)  # type: ignore[arg-type]


def test_names_that_are_accepted() -> None:
    """On this machine alone its own, elsewhere those that are named and its own, or any."""
    assert accepted_hosts("127.0.0.1", []) == LOOPBACK
    assert accepted_hosts("0.0.0.0", []) == ()
    assert accepted_hosts("0.0.0.0", ["judge.example"]) == ("judge.example", *LOOPBACK)


def test_a_collector_without_its_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that nobody sends are not lost in silence."""
    from rewardlab.serving.tracing import export_spans

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="rewardlab\\[otel\\]"):
        export_spans()
