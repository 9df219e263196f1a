"""An endpoint to attack, watched from outside."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Asks /health and /ready while it is open, and sums the memory."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.url, self.process, self.health_ms = url, process, list[float]()
        self.ready, self.peak_mb = Counter[str](), 0.0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask), threading.Thread(target=self._weigh)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._stopped.wait(0.1):
            for path, seen in (("/health", self.health_ms), ("/ready", None)):
                begun = time.perf_counter()
                try:
                    status = str(_status(self.url, path))
                except (OSError, http.client.HTTPException) as error:
                    status = type(error).__name__
                if seen is None:
                    self.ready[status] += 1
                else:
                    seen.append(1000 * (time.perf_counter() - begun) if status == "200" else float("inf"))

    def _weigh(self) -> None:
        while not self._stopped.wait(0.02):
            with contextlib.suppress(psutil.Error):
                family = [self.process, *self.process.children(recursive=True)]
                self.peak_mb = max(self.peak_mb, sum(one.memory_info().rss for one in family) / 1e6)

    def result(self) -> dict[str, Any]:
        times = sorted(self.health_ms)
        place = min(len(times) - 1, int(0.99 * len(times)))
        return {
            "health_worst_ms": times[-1],
            "health_p99_ms": times[place],
            "asked": len(times),
            "ready": dict(self.ready),
            "peak_mb": self.peak_mb,
        }
