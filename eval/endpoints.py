"""Endpoints under measurement: `rewardlab serve` in a process of its own, an app in a thread, and requests to them."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import uvicorn

from rewardlab.data.images import to_data_url
from rewardlab.errors import EndpointError
from rewardlab.processes import end_with_parent
from rewardlab.types import PreferencePair

NGINX = Path(__file__).parents[1] / "configs" / "launch" / "nginx.conf"
START_TIMEOUT_S = 300
PLAIN = ("template=plain", "max_tokens=64")
JUDGING = (*PLAIN, "batch_size=256")  # for the quickstart's judge
GREEDY = (*JUDGING, "temperature=0")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_endpoint(judge: str, port: int, *options: str, log: Path = Path(os.devnull)) -> subprocess.Popen[bytes]:
    """Start ``rewardlab serve``, which writes to ``log``; it ends with this process."""
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", judge, "--port", str(port), *options]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, preexec_fn=end_with_parent)


def nginx_command(folder: Path, changes: dict[str, str], num_connections: int = 512) -> list[str]:
    """Return the command of nginx with ``configs/launch/nginx.conf``, in which some texts are replaced; a folder has its files.
    Raise ValueError if a text is not there."""
    text = NGINX.read_text()
    for old, new in changes.items():
        if old not in text:
            raise ValueError(f"{NGINX}: no {old!r}")
        text = text.replace(old, new)
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    events = f"events {{ worker_connections {num_connections}; }}"
    head = f"daemon off; user root; pid {folder}/pid; error_log {folder}/error.log; {events}"
    (folder / "main.conf").write_text(f"{head}\nhttp {{ access_log off; {paths}\n{text}\n}}\n")
    return ["nginx", "-e", f"{folder}/error.log", "-c", f"{folder}/main.conf"]


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return once ``/ready`` says yes. Raise EndpointError if the process ends, or is not ready in time."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise EndpointError(f"{shlex.join(map(str, process.args))}: ended with status {process.returncode}")  # type: ignore[arg-type]
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise EndpointError(f"{url}: not ready after {START_TIMEOUT_S} s")


@contextmanager
def endpoint(judge: str, *options: str, port: int = 0, log: Path = Path(os.devnull)) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a judge; yield the address once it is ready, and the process."""
    process = start_endpoint(judge, port := port or free_port(), *options, log=log)
    try:
        wait_until_ready(url := f"http://127.0.0.1:{port}", process)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(90)


@contextmanager
def behind_nginx(url: str) -> Iterator[str]:
    """Run nginx with the shipped file before an endpoint; yield its address, which is on this machine alone and without TLS."""
    port = free_port()
    changes = {
        "127.0.0.1:8000": url.removeprefix("http://"),
        "443 ssl": f"127.0.0.1:{port}",
        "judge.example.org;": "localhost;",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = nginx_command(Path(folder), changes | {"ssl_certificate ": "# ", "ssl_certificate_key ": "# "}, 4096)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent) as process:
            try:
                wait_until_ready(proxy := f"http://127.0.0.1:{port}", process)
                yield proxy
            finally:
                process.terminate()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an app in a thread; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=(port := free_port()), log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


def body_of(pair: PreferencePair, seed: int, **options: Any) -> dict[str, Any]:
    """Return the body of a request to ``/v1/judge``."""
    images = list(map(to_data_url, pair.images))
    return {"question": pair.question, "responses": pair.responses, "images": images, "seed": seed, **options}


async def over_http(url: str, pairs: Sequence[PreferencePair], *, num_votes: int, concurrency: int, seed: int) -> float:
    """Judge every pair by the endpoint; return the seconds from the first request to the last answer. Raise for an answer with
    fewer votes than requested."""
    slots, bodies = asyncio.Semaphore(concurrency), [body_of(pair, seed, votes=num_votes) for pair in pairs]
    # aiohttp, as most frameworks' clients: httpx with 64 connections costs three times the CPU time of the server
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=concurrency)) as client:

        async def ask(body: dict[str, Any]) -> None:
            async with slots, client.post("/v1/judge", json=body, raise_for_status=True) as response:
                answer = await response.json()
            assert len(answer["votes"]) == 2 * num_votes

        start = time.perf_counter()
        await asyncio.gather(*map(ask, bodies))
        return time.perf_counter() - start


def rss_mb(process: psutil.Process) -> dict[str, float]:
    """Return the memory of the server and of its engine, in MB."""
    engine = [child for child in process.children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())]
    return {"server": process.memory_info().rss / 2**20, "engine": sum(child.memory_info().rss for child in engine) / 2**20}


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of the server and of its engine."""
    return sum(sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)])


class Watch:
    """Requests ``/health`` and ``/ready`` of an endpoint at all its addresses ten times a second, on new connections, and reads
    its memory: in a process of its own, which threads of the one that measures cannot delay."""

    def __init__(self, urls: dict[str, str], process: psutil.Process) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        context.Process(target=_watch, args=(urls, process.pid, theirs), daemon=True).start()

    def during(self, action: Callable[[], Any]) -> dict[str, Any]:
        """Return what the action returned, with what was observed until a second after it."""
        self._pipe.send("begin")
        self._pipe.recv()
        answer = action()
        time.sleep(1)
        self._pipe.send("end")
        return {"answer": answer, **self._pipe.recv()}


def _watch(urls: dict[str, str], pid: int, parent: Connection) -> None:
    process = psutil.Process(pid)
    with suppress(EOFError):
        while parent.recv():
            parent.send("begun")
            worst_ms, ready, peak_mb = dict.fromkeys(urls, 0.0), Counter[str](), 0.0
            while not parent.poll():
                for name, url in urls.items():
                    begun, status = time.perf_counter(), _get(url, "/health")
                    took_ms = 1000 * (time.perf_counter() - begun) if status == "200" else math.inf
                    worst_ms[name] = max(worst_ms[name], took_ms)
                    ready[_get(url, "/ready")] += 1
                for _ in range(4):
                    with suppress(psutil.Error):
                        peak_mb = max(peak_mb, sum(rss_mb(process).values()) * 2**20 / 1e6)
                    time.sleep(0.02)
            parent.recv()
            parent.send({"health_worst_ms": worst_ms, "ready": dict(ready), "peak_mb": peak_mb})


def _get(url: str, path: str) -> str:
    """Return the status of an answer on a new connection; a client of httpx would take longer to make than the answer."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        return str(connection.getresponse().status)
    except (OSError, HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
