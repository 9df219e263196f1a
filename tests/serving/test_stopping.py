"""A server process that is told to stop, and one that takes its place."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardlab.integrations.client import RewardClient
from tests.support.held_judge import held_server
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION

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


def test_what_is_left_is_told(tmp_path: Path) -> None:
    """503, when to come back and why, to who waits for the engine and to who waits for a group; not a cut connection."""
    (tmp_path / "answers").touch()
    with held_server(tmp_path, notice_s=0, drain_s=0.5) as (url, process), ThreadPoolExecutor(8) as pool:
        answers = in_flight(url, 5, pool)
        sample = {"query": [PROMPT + "I say 1."], "prompts": [PROMPT]}
        answers.append(pool.submit(httpx.post, f"{url}/get_reward", json=sample, timeout=60))
        until(lambda: "rewardlab_group_members_waiting 1.0" in httpx.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        for answer in (future.result() for future in answers):
            assert (answer.status_code, answer.json()["status"]) == (503, "enginefailed")
            assert "shutting down" in answer.json()["error"]
            assert int(answer.headers["Retry-After"]) >= 1
        assert process.wait(30) == 0


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
        (tmp_path / "answers").unlink()
        stack.enter_context(held_server(tmp_path, notice_s=0, drain_s=0, port=int(url.rpartition(":")[2])))
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
    command += ["max_tokens=4", "--engine-timeout", "15", "--notice", "0.5", "--port", str(port)]
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
