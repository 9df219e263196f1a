"""An endpoint to attack, watched from outside."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import httpx
import psutil
from serving_rate import free_port

PAIR: dict[str, Any] = {"question": "Which?", "responses": ["it is red", "it is blue"]}
USER = {"role": "user", "content": "Which?"}
CHATML = "<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n"
JSON = {"Content-Type": "application/json"}


@contextmanager
def endpoint(*options: str, files: int = 4096) -> Iterator[tuple[str, psutil.Process]]:
    """``rewardlab serve`` over the judge that travels with the package, which may open so many files, once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", "demo", "--port", str(port), "--max-tokens", "64"]

    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # the attackers need the other core

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limit, env=env
    ) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            while not _is_ready(url):
                assert server.poll() is None, "the server ended"
                time.sleep(0.2)
            httpx.post(f"{url}/v1/judge", json=PAIR, timeout=60)
            yield url, psutil.Process(server.pid)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/ready").status_code == 200
    return False


def _status(url: str, path: str) -> int:
    """Ask on a new connection; a client of httpx would take longer to make than the answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


class Watch:
    """Asks /health and /ready while it is open, and sums the memory: in a process of its own, for the attacker's threads would
    hold it up."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        context = get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=_watch, args=(url, process.pid, theirs), daemon=True)

    def __enter__(self) -> Watch:
        self._process.start()
        self._mine.recv()  # it has begun
        return self

    def __exit__(self, *error: object) -> None:
        self._mine.send("stop")
        self._result: dict[str, Any] = self._mine.recv()
        self._process.join()

    def result(self) -> dict[str, Any]:
        return self._result


def _watch(url: str, pid: int, parent: Connection) -> None:
    family, health_ms, ready, peak_mb = psutil.Process(pid), list[float](), Counter[str](), 0.0
    parent.send("begun")
    while not parent.poll():
        health_ms.append(_health_ms(url))
        ready[_status_or_error(url, "/ready")] += 1
        for _ in range(4):
            peak_mb = max(peak_mb, _resident_mb(family))
            time.sleep(0.025)
    times = sorted(health_ms)
    parent.send(
        {
            "health_worst_ms": times[-1],
            "health_p99_ms": times[min(len(times) - 1, int(0.99 * len(times)))],
            "asked": len(times),
            "ready": dict(ready),
            "peak_mb": peak_mb,
        }
    )


def _status_or_error(url: str, path: str) -> str:
    try:
        return str(_status(url, path))
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


def _health_ms(url: str) -> float:
    """Return the time of an answer, infinity where it is not 200."""
    begun = time.perf_counter()
    status = _status_or_error(url, "/health")
    return 1000 * (time.perf_counter() - begun) if status == "200" else float("inf")


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a server and of the processes that it started and that still run."""
    return float(sum(sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)]))


def _resident_mb(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]) / 1e6)
    return 0.0
