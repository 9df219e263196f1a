"""Two processes of `rewardlab serve` that share groups: samples of one prompt meet wherever they were sent."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.errors import ConfigError, DataError
from rewardlab.serving.conversations import Sample
from rewardlab.serving.errors import OverloadedError, PeerError
from rewardlab.serving.peers import JOIN_PATH, Peers
from rewardlab.types import Message, Part
from tests.support.scripted_judge import ANSWERS, CHATML, handler
from tests.support.servers import free_port, running

KEY, HEADERS = "team-key", {"Authorization": "Bearer team-key"}


async def complete(request: Request) -> Response:
    """Complete a chat as the scripted judge does."""
    content = (await request.json())["messages"][0]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    verdict = handler((Message("user", (Part(text=text),)),), 0)
    choice = {"index": 0, "message": {"role": "assistant", "content": verdict}, "finish_reason": "stop"}
    return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    models = JSONResponse({"object": "list", "data": [{"id": "judge", "object": "model"}]})
    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", lambda request: models)]
    with running(Starlette(routes=routes)) as url:
        yield url


@contextmanager
def served(engine: str, folder: Path, address: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    keys = folder / "keys"
    keys.write_text(KEY)
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", f"openai:judge@{engine}/v1", "template=plain"]
    command += ["--port", address.rpartition(":")[2], "--keys", str(keys), "--group-size", "3", "--group-timeout", "2"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None
        assert time.monotonic() < end
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)


@pytest.fixture(scope="module")
def pair(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Two servers by their address, which know each other."""
    folder, urls = tmp_path_factory.mktemp("pair"), [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        processes = {
            url: stack.enter_context(served(engine, folder, url, "--address", url, "--peers", ",".join(urls))) for url in urls
        }
        for url, process in processes.items():
            until_ready(url, process)
        yield processes


def ask(url: str, question: str, answer: str, **headers: str) -> httpx.Response:
    prompt = CHATML.format(q=question)
    body = {"query": [prompt + answer], "prompts": [prompt], "labels": ["red"]}
    return httpx.post(f"{url}/get_reward", json=body, headers=HEADERS | headers, timeout=60)


def question_at(home: str, urls: list[str]) -> str:
    """A question whose group meets at a server."""
    from rewardlab.serving.conversations import Sample

    peers = Peers(urls[0], urls, wait_s=1)
    return next(text for n in range(100) if peers.home_of(Sample(text := f"What is number {n}?", "").key) == home)


def test_samples_meet_wherever_they_are_sent(pair: dict[str, Any]) -> None:
    """Every way of splitting a group over the servers ends in the rewards of one; each server is home to some groups."""
    urls = list(pair)
    for home in urls:
        question = question_at(home, urls)
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(ask, [urls[0], urls[1], urls[0]], [question] * 3, ANSWERS))
        assert [answer.json()["rewards"] for answer in answers] == [[-1], [1], [0]]


def test_only_peers_of_the_same_servers_are_joined(pair: dict[str, Any]) -> None:
    """With a key, and not where another list of servers would tear groups apart."""
    url = next(iter(pair))
    for options in (["--peers", url], ["--address", url]):
        done = CliRunner().invoke(app, ["serve", "--judge", "hf:x", "--port", str(free_port()), *options])
        assert "--peers and --address belong together" in str(done.exception)
    sample = {"question": "q", "response": "a", "images": [], "anchor": None, "scope": "", "home": url, "servers": [url]}
    assert httpx.post(url + JOIN_PATH, json=sample).status_code == 401
    refused = httpx.post(url + JOIN_PATH, json=sample, headers=HEADERS)
    assert (refused.status_code, refused.json()["status"]) == (503, "peer")
    assert "give all of them the same --peers" in refused.json()["error"]
    other = httpx.post(url + JOIN_PATH, json=sample | {"home": "http://b:1", "servers": list(pair)}, headers=HEADERS)
    assert (other.status_code, other.json()["status"]) == (503, "peer")
    assert f"reaches this server as http://b:1, and its own --address is {url}" in other.json()["error"]


@pytest.mark.parametrize(
    ("code", "body", "kind", "sentence"),
    [
        (429, {"error": "busy; try again in 7 s", "status": "overloaded"}, OverloadedError, "^busy; try again in 7 s$"),
        (400, {"error": "too long", "status": "context_length_exceeded"}, DataError, "^too long$"),
        (413, {"error": "too large", "status": "toolarge"}, DataError, "^too large$"),
        (502, None, PeerError, "answered HTTP 502"),
    ],
)  # fmt: skip
def test_what_a_home_refuses(code: int, body: Any, kind: type[Exception], sentence: str) -> None:
    """What would be refused again is no reason to try again, and the sentence says once when to."""

    async def answer(request: Request) -> Response:
        return Response("no", code) if body is None else JSONResponse(body, code, {"Retry-After": "7"})

    with running(Starlette(routes=[Route(JOIN_PATH, answer, methods=["POST"])])) as url:
        peers = Peers("http://a:1", [url], wait_s=5)
        with pytest.raises(kind, match=sentence):
            asyncio.run(peers.join(url, Sample("q", "r")))


def test_a_home_that_is_down_is_no_reward(pair: dict[str, Any]) -> None:
    """503 with when to come back, at once; groups that live elsewhere are rewarded. What the home refuses is passed on."""
    urls = list(pair)
    alive, gone = urls
    alone = ask(alive, question_at(gone, urls), "I say 1.")
    assert (alone.status_code, alone.json()["status"]) == (408, "alone")
    assert "only 1 of 3" in alone.json()["error"]
    pair[gone].send_signal(signal.SIGKILL)
    pair[gone].wait(30)
    refused = ask(alive, question_at(gone, urls), "I say 1.")
    assert (refused.status_code, refused.json()["status"], refused.headers["Retry-After"]) == (503, "peer", "5")
    assert f"{gone}, where responses to this prompt meet, cannot be reached" in refused.json()["error"]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, [alive] * 3, [question_at(alive, urls)] * 3, ["I say 4.", "I say 6.", "I say 5."]))
    assert [answer.json()["rewards"] for answer in answers] == [[-1], [1], [0]]


def test_addresses() -> None:
    """Of the same set whatever their order; groups of a server that goes are the only ones that move."""
    urls = ["http://a:1", "http://b:1", "http://c:1/judge"]
    three, two = Peers(urls[0], urls[1:], wait_s=1), Peers(urls[1], urls[:1], wait_s=1)
    assert three.servers == Peers(urls[2] + "/", reversed(urls), wait_s=1).servers  # type: ignore[arg-type]
    homes = {key: three.home_of(key) for key in map(str, range(300))}
    assert min(list(homes.values()).count(url) for url in urls) > 50
    assert all(two.home_of(key) == home for key, home in homes.items() if home != urls[2])
    for bad in ("a:1", "ftp://a", "http://", "http://a?b"):
        with pytest.raises(ConfigError, match="--peers"):
            Peers("http://a:1", [bad], wait_s=1)
    with pytest.raises(ConfigError, match="names no other server"):
        Peers("http://a:1", ["http://a:1/"], wait_s=1)
