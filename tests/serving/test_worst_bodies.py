"""The most expensive bodies of each route: what a refusal builds is bounded, and so are its seconds and memory."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from eval.serving_worst import ENTRIES, LIMITS, MAX_MB, MAX_REFUSAL_SECONDS, application, bodies, routes_with_bodies
from rewardlab.serving.limits import Limits
from rewardlab.serving.strict_json import parse_json
from tests.support.shell import run_module

MAX_ERRORS = ENTRIES + 32  # each unknown key of an object has one
APP = application()
LARGE = ("texts", "texts with an emoji")  # of 30 MB each
ROUTES = {path: route for path, route in routes_with_bodies(APP).items() if route.body_field}


@pytest.fixture(scope="module")
def refused() -> list[tuple[str, str, Any]]:
    return [one for one in bodies(APP, refusals_only=True) if one[1] not in (*LARGE, "unknown keys")]


@pytest.mark.parametrize("path", ROUTES)
def test_few_errors_are_built(refused: list[tuple[str, str, Any]], path: str) -> None:
    """A schema ends at the first wrong item of a list, however many there are, and however deep the list."""
    field = ROUTES[path].body_field
    assert field is not None
    for route, name, body in refused:
        if route == path:
            _, errors = field.validate(body, loc=("body",))
            assert len(errors or []) <= MAX_ERRORS, (name, errors[0])


def test_a_route_without_a_body() -> None:
    """It fails the enumeration, whatever its method."""
    app = FastAPI()

    @app.put("/v1/new")
    async def new(body: dict[str, str]) -> None:
        pass

    with pytest.raises(KeyError, match=r"no body for .*/v1/new"):
        routes_with_bodies(app)
    paths = {route.path for route in APP.routes if isinstance(route, APIRoute) and "POST" in route.methods}
    assert {"/v1/judge", "/v1/uploads", "/rerank", "/verify", "/v1/peers/join"} <= paths


def test_a_large_object_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are neither collected nor looked at."""
    monkeypatch.setattr("rewardlab.serving.strict_json._check_values", pytest.fail)
    with pytest.raises(Exception, match="1,025 entries"):
        parse_json(json.dumps([{f"k{n}": 0 for n in range(ENTRIES + 1)}]).encode(), LIMITS)


def test_large_bodies_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop would wait for the interpreter behind the threads of all of them; also those whose client has gone."""
    running, most = threading.Semaphore(), list[bool]()

    def parse(body: bytes, limits: Limits) -> Any:
        most.append(alone := running.acquire(blocking=False))
        time.sleep(0.02)
        if alone:
            running.release()
        return parse_json(body, limits)

    monkeypatch.setattr("rewardlab.serving.strict_json.parse_json", parse)
    body = {"question": "Which?", "unknown": ["x" * 1000] * 300}

    async def send() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application()), timeout=30) as client:
            sent = [asyncio.create_task(client.post("http://localhost/v1/judge", json=body)) for _ in range(12)]
            await asyncio.sleep(0.03)
            for task in sent[:4]:
                task.cancel()
            return [(await task).status_code for task in sent[4:]]

    assert asyncio.run(send()) == [422] * 8
    assert 8 <= len(most) < 12
    assert all(most)


@pytest.mark.nightly
def test_the_largest_group_from_the_cache_leaves_turns_to_others() -> None:
    """None of the steps after the comparisons takes a quarter of its CPU seconds."""
    body = {"question": "Which?", "responses": [f"{n} is red" for n in range(LIMITS.responses)]}
    turns: list[float] = []

    async def tick() -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0.001)
            turns.append(time.thread_time() - begun)

    async def judge_twice() -> float:
        app = application()
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), timeout=None) as client,
        ):
            await client.post("http://localhost/v1/rewards", json=body)
            ticking, begun = asyncio.create_task(tick()), time.thread_time()
            answer = await client.post("http://localhost/v1/rewards", json=body)
            ticking.cancel()
            assert len(answer.json()["matches"]) == 127 * 64
            return time.thread_time() - begun

    gc.disable()  # it holds the loop, too: a server leaves what was loaded at its start out of it
    try:
        seconds = asyncio.run(judge_twice())
    finally:
        gc.enable()
    assert max(turns) < seconds / 4


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_the_cost_of_refusals() -> None:
    """Every route: seconds of the thread that serves all clients, and memory above the body's own.

    Large texts take more memory than others, and many keys a little more: the text of a body beside its values, of one body
    at a time."""
    done = run_module("eval.serving_worst", "--json", "--refusals")
    assert done.returncode == 0, done.stderr[-2000:]
    machine, *costs = map(json.loads, done.stdout.splitlines())
    refused = [cost for cost in costs if cost["status"] >= 400]
    accepted = {cost["path"] for cost in costs if cost["status"] < 400 and cost["body"] != "texts with an emoji"}
    assert accepted <= {"/seed_session", "/aggregate_metrics"}
    assert {cost["path"] for cost in refused} | {"/seed_session"} == set(routes_with_bodies(APP))
    most_s = MAX_REFUSAL_SECONDS * max(1.0, machine["counting_seconds"] / 0.1)
    assert [cost for cost in refused if cost["seconds"] > most_s] == []
    most_mb = {"unknown keys": 60.0, "texts": 75.0, "texts with an emoji": 250.0}
    assert [cost for cost in refused if cost["mb"] > most_mb.get(cost["body"], MAX_MB)] == []
