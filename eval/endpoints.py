"""Endpoints under measurement: `rewardlab serve` in a process of its own, an app in a thread, and requests to them."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
import httpx
import psutil
import uvicorn

from rewardlab.data.images import to_data_url
from rewardlab.errors import EndpointError
from rewardlab.processes import end_with_parent
from rewardlab.types import PreferencePair

START_TIMEOUT_S = 300
PLAIN = ("template=plain", "max_tokens=64")
JUDGING = (*PLAIN, "batch_size=256")  # for the quickstart's judge
GREEDY = (*JUDGING, "temperature=0")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_endpoint(judge: str, port: int, *options: str) -> subprocess.Popen[bytes]:
    """Start ``rewardlab serve``; it ends with this process."""
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", judge, "--port", str(port), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent)


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
def endpoint(judge: str, *options: str, port: int = 0) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a judge; yield the address once it is ready, and the process."""
    process = start_endpoint(judge, port := port or free_port(), *options)
    try:
        wait_until_ready(url := f"http://127.0.0.1:{port}", process)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(90)


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


async def over_http(url: str, pairs: Sequence[PreferencePair], *, num_votes: int, concurrency: int, seed: int) -> None:
    """Judge every pair by the endpoint. Raise for an answer with fewer votes than requested."""
    slots, bodies = asyncio.Semaphore(concurrency), [body_of(pair, seed, votes=num_votes) for pair in pairs]
    # aiohttp, as most frameworks' clients: httpx with 64 connections costs three times the CPU time of the server
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=concurrency)) as client:

        async def ask(body: dict[str, Any]) -> None:
            async with slots, client.post("/v1/judge", json=body, raise_for_status=True) as response:
                answer = await response.json()
            assert len(answer["votes"]) == 2 * num_votes

        await asyncio.gather(*map(ask, bodies))


def rss_mb(process: psutil.Process) -> dict[str, float]:
    """Return the memory of the server and of its engine, in MB."""
    engine = [child for child in process.children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())]
    return {"server": process.memory_info().rss / 2**20, "engine": sum(child.memory_info().rss for child in engine) / 2**20}
