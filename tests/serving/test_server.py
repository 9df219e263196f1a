"""A server process: its settings, how it listens, and how it stops."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.cli.serve import ServeOptions, _limits
from rewardlab.errors import ConfigError, OutputError
from rewardlab.integrations.client import RewardClient
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.middleware import LOOPBACK, accepted_hosts
from rewardlab.serving.server import GROWN_BYTES, JudgeServer, connection_options, listening_options
from rewardlab.serving.service import GroupRules
from rewardlab.serving.uploads import UploadStore
from rewardlab.types import Message
from tests.support.held_judge import held_server
from tests.support.images import png
from tests.support.openai_server import ChatServer, chat_server
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION, handler
from tests.support.servers import free_port, running
from tests.support.serving import app_of


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


@contextmanager
def in_thread(app: Any, *, port: int = 0, **options: Any) -> Iterator[tuple[int, JudgeServer]]:
    """Run a server without a process of its own; yield its port when it listens."""
    config = uvicorn.Config(app, port=port or free_port(), log_level="error", **options)
    server = JudgeServer(config, app.state.service)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield config.port, server
    server.should_exit = True
    thread.join(10)


def test_a_process_with_settings_of_three_kinds(tmp_path: Path) -> None:
    """What the command line says counts before a variable, and that before the file; all that it logs is JSON."""
    (tmp_path / "keys").write_text("secret name=anna\n")
    port = free_port()
    with chat_server(ChatServer()) as engine:
        settings = {"judge": f"openai:file@{engine}", "port": 1, "host": "127.0.0.9", "keys": str(tmp_path / "keys")}
        settings |= {"log-format": "json", "allowed_host": "judge.example", "notice": 0, "queue": 9}
        (tmp_path / "serve.yaml").write_text(json.dumps(settings))
        variables = {"REWARDLAB_SERVE_CONFIG": str(tmp_path / "serve.yaml"), "REWARDLAB_SERVE_HOST": "127.0.0.1"}
        command = ["serve", "--port", str(port), "--limit", "queue=7"]
        with server_process(command, variables) as (process, lines):
            with httpx.Client(base_url=f"http://localhost:{port}") as client:
                client.headers["Authorization"] = "Bearer secret"
                judged = client.post("/v1/judge", json={"question": "Which?", "responses": ["a", "b"]})
                host = client.get("/v1/status", headers={"Host": "judge.example"}).status_code
                assert client.get("/v1/status").json()["max_waiting"] == 7
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
        ("grop-size: 3", "group-size?"),
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


def test_limits_of_the_file_the_variables_and_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bare names in the file and the environment; the later one counts."""
    path = tmp_path / "serve.yaml"
    path.write_text("queue: 9\nitems: 5\ngroup-timeout: 2.5\n")
    monkeypatch.setenv("REWARDLAB_SERVE_ITEMS", "4")
    limits = _limits(ServeOptions(judge="demo", config=path, limit=["queue=7"]))
    assert (limits.queue, limits.items, limits.group_timeout, limits.drain) == (7, 4, 2.5, 90)
    path.write_text("check_rate: 2\n")
    with pytest.raises(ConfigError, match="--limit check_rate=2: expected a number from 0 to 1"):
        _limits(ServeOptions(judge="demo", config=path))


def test_a_variable_of_no_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is misspelt would count for nothing."""
    monkeypatch.setenv("REWARDLAB_SERVE_ALOWED_HOST", "x")
    error = CliRunner().invoke(app, ["serve", "--judge", "demo"]).exception
    assert isinstance(error, ConfigError)
    assert "allowed-host?" in str(error)


def test_a_port_in_use_is_refused_before_the_judge_is_opened() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = CliRunner().invoke(app, ["serve", "--judge", "hf:none", "--port", str(taken.getsockname()[1])]).exception
    assert isinstance(error, OutputError)
    assert "choose another --port" in str(error)


def test_how_it_cannot_listen() -> None:
    """A path that is none, a format of no log."""
    for options, said in [({"root_path": "judge"}, "such as /judge"), ({"log_format": "xml"}, "text or json")]:
        with pytest.raises(ConfigError, match=said):
            listening_options(**options)


def test_as_many_samples_as_a_step_sends() -> None:
    """2,560 responses, each alone and from one address, of which none is answered before all are there."""
    if 0 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 6000:
        pytest.skip("the process may open too few files for both sides")
    num, all_there = itertools.count(1), asyncio.Event()

    async def wait(request: Request) -> Response:
        if next(num) == 2560:
            all_there.set()
        await all_there.wait()
        return Response()

    with ExitStack() as stack, running(Starlette(routes=[Route("/", wait)]), **connection_options(Limits())) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        burst = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(2560)]
        for connection in burst:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all(connection.recv(100).startswith(b"HTTP/1.1 200 ") for connection in burst)


UPGRADE = b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([b"POST / HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 4\r\n\r\nGET "], [b"GET "]),
        ([b"POST / HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 4\r\n\r\n", b"GET "], [b"GET "]),
        ([b"POST / HTTP/1.1\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"] * 2, [b"a", b"a"]),
        ([b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n"] * 3, [b"-"] * 3),
    ],
)
def test_another_protocol_is_not_changed_to(sent: list[bytes], said: list[bytes]) -> None:
    """The header Upgrade is ignored; what follows is the body of the request, and no other request."""

    async def echo(request: Request) -> Response:
        return Response(await request.body() or b"-")

    app = Starlette(routes=[Route("/", echo, methods=["GET", "POST"])])
    with running(app, **connection_options(Limits())) as url:
        for pause in (0, 0.1):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as connection:
                for part in sent:
                    connection.sendall(part)
                    time.sleep(pause)
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                received = b"".join(iter(lambda: connection.recv(65536), b""))
            bodies = [answer.partition(b"\r\n\r\n")[2] for answer in received.split(b"HTTP/1.1 ")[1:]]
            assert bodies == [*said, b"-"]
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as connection:
            connection.sendall(b"CONNECT localhost:1 HTTP/1.1\r\n" + UPGRADE + b"\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


def test_names_that_are_accepted() -> None:
    """On this machine alone its own, elsewhere those that are named and its own, or any."""
    assert accepted_hosts("127.0.0.1", []) == LOOPBACK
    assert accepted_hosts("0.0.0.0", []) == ()
    assert accepted_hosts("0.0.0.0", ["judge.example"]) == ("judge.example", *LOOPBACK)


def test_a_collector_without_its_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that nobody sends are not lost in silence."""
    from rewardlab.serving.request_record import export_spans

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="rewardlab\\[otel\\]"):
        export_spans()


GROUP = {"question": QUESTION, "responses": ANSWERS}


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not good():
        assert time.monotonic() < end
        time.sleep(0.02)


def status(url: str, path: str = "/ready") -> int:
    return httpx.get(f"{url}{path}", timeout=30).status_code


def in_flight(url: str, num: int, pool: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """Send so many groups, and return when the server has all of them."""
    futures = [pool.submit(httpx.post, f"{url}/v1/rewards", json={**GROUP, "seed": n}, timeout=60) for n in range(num)]
    until(lambda: httpx.get(f"{url}/v1/status").json()["counts"]["asked"] == 3 * num)
    return futures


def test_it_says_so_then_finishes(tmp_path: Path) -> None:
    """Unready at once and listening still; then no new connection, and what was begun is answered; the exit status is 0."""
    hold = tmp_path / "answers"
    hold.touch()
    with held_server(tmp_path, notice_s=1.5, drain_s=60) as (url, process), ThreadPoolExecutor(8) as pool:
        answers = in_flight(url, 5, pool)
        process.send_signal(signal.SIGTERM)
        until(lambda: status(url) == 503)
        assert status(url, "/health") == 200
        answers.append(pool.submit(httpx.post, f"{url}/v1/rewards", json={**GROUP, "seed": 99}, timeout=60))

        def is_closed() -> bool:
            try:
                return not status(url, "/health")
            except httpx.TransportError:
                return True

        until(is_closed)
        assert not any(answer.done() for answer in answers)
        hold.unlink()
        assert [(a.result().status_code, a.result().json()["rewards"]) for a in answers] == [(200, [-1, 1, 0])] * 6
        assert process.wait(30) == 0


def test_what_is_left_is_told() -> None:
    """503, when to come back and why, to who waits for the engine and to who waits for a group; not a cut connection."""
    gate = threading.Event()

    def held(prompt: tuple[Message, ...], draw: int) -> Any:
        gate.wait(30)
        return handler(prompt, draw)

    app = app_of(held, rules=GroupRules(group_size=3), limits=Limits(notice=0, drain=0.5))
    with in_thread(app) as (port, server), ThreadPoolExecutor(8) as pool:
        url = f"http://127.0.0.1:{port}"
        answers = in_flight(url, 5, pool)
        sample = {"query": [PROMPT + "I say 1."], "prompts": [PROMPT]}
        answers.append(pool.submit(httpx.post, f"{url}/get_reward", json=sample, timeout=60))
        until(lambda: "rewardlab_group_members_waiting 1.0" in httpx.get(f"{url}/metrics").text)
        server.handle_exit(signal.SIGTERM, None)
        for answer in (future.result() for future in answers):
            assert (answer.status_code, answer.json()["status"]) == (503, "enginefailed")
            assert "shutting down" in answer.json()["error"]
            assert int(answer.headers["Retry-After"]) >= 1
        gate.set()


@pytest.mark.nightly
def test_a_client_outlives_a_restart(tmp_path: Path) -> None:
    """Its uploads too: the server is killed while it asks, another one takes the port, and the answer comes."""
    (tmp_path / "answers").touch()
    with ExitStack() as stack:
        url, process = stack.enter_context(held_server(tmp_path, notice_s=0, drain_s=0))
        upload = httpx.post(f"{url}/v1/uploads", content=png()).json()["id"]
        client = RewardClient(url, deadline_s=60)

        def rewards() -> list[float | None]:
            return asyncio.run(client.rewards("Do you see it?", ANSWERS, [f"upload:{upload}"]))

        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(rewards)
        until(lambda: httpx.get(f"{url}/v1/status").json()["counts"]["asked"] == 3)
        process.kill()
        process.wait(30)
        app = app_of(media=Media(uploads=UploadStore(tmp_path / "uploads")))
        stack.enter_context(in_thread(app, port=int(url.rpartition(":")[2])))
        assert waiting.result() == [-1, 1, 0]
        assert client.num_failed == 0


@pytest.mark.nightly
def test_a_real_judge_lives_through_it_all(tiny_checkpoint: Path, tmp_path: Path, demo_pairs: Any) -> None:
    """`rewardlab serve` of a tiny Qwen2.5-VL: its engine killed, then stopped, then the server; nobody hears but in time."""
    import sys

    import psutil

    from tests.support.servers import free_port

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", f"hf:{tiny_checkpoint}", "template=plain"]
    command += ["max_tokens=4", "--limit", "engine_timeout=15", "--limit", "notice=0.5", "--port", str(port)]
    process = subprocess.Popen([*command, "--uploads", str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        pair = demo_pairs[0][0]
        client = RewardClient(url, deadline_s=240)

        def judge(seed: int) -> Any:
            body = {"question": pair.question, "responses": pair.responses, "seed": seed, "timeout_s": 200}
            return asyncio.run(client.post("/v1/judge", body))

        def engine() -> psutil.Process:
            return max(psutil.Process(process.pid).children(recursive=True), key=lambda child: child.memory_info().rss)

        assert judge(0)["judge"]  # waited for before it listens
        with ThreadPoolExecutor(4) as pool:
            for n, sign in enumerate((signal.SIGKILL, signal.SIGSTOP)):
                engine().send_signal(sign)
                assert all(answer["judge"] for answer in pool.map(judge, range(10 * n + 1, 10 * n + 5)))
        engine().send_signal(signal.SIGSTOP)  # it hears nothing, and must not keep the server from ending
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_garbage_is_collected_where_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while requests are answered; else it waits until none is."""
    web = app_of()
    resident, collections = 10**9, gc.get_stats()[2]["collections"]
    monkeypatch.setattr("rewardlab.serving.server.resident_bytes", lambda: resident)
    server = JudgeServer(uvicorn.Config(web, log_level="error"), web.state.service)
    server.config.load()
    monkeypatch.setattr(server.server_state, "tasks", {object()})
    for grown, number in ((GROWN_BYTES, 0), (1, 1), (1, 1), (GROWN_BYTES, 2)):
        resident += grown
        asyncio.run(server.on_tick(1))
        assert gc.get_stats()[2]["collections"] - collections == number
