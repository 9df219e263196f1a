"""verl's reward manager of groups, on stand-ins for the two names of verl that it needs, which is not installed here."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.errors import DataError, EndpointError
from tests.support.servers import running

BASE = "verl.experimental.reward_loop.reward_manager.base"


class Manager:
    """In place of verl's RewardManagerBase."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
        self.tokenizer = tokenizer


class Words:
    """A tokenizer whose tokens are the numbers that responses say."""

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids.tolist()))


class Rollout(dict[str, Any]):
    n = 2


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    names = BASE.split(".")
    for depth in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:depth]), ModuleType(".".join(names[:depth])))
    sys.modules["verl"].DataProto = object  # type: ignore[attr-defined]
    sys.modules[BASE].RewardManagerBase = Manager  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "rewardlab.integrations.verl_groups", raising=False)
    yield importlib.import_module("rewardlab.integrations.verl_groups")
    sys.modules.pop("rewardlab.integrations.verl_groups", None)


@contextmanager
def judge(seconds: float = 0.0) -> Iterator[tuple[str, list[Any]]]:
    """A server whose reward of a response is its number, after so many seconds; with the groups that it was sent."""
    groups: list[list[str]] = []

    async def rewards(request: Request) -> JSONResponse:
        groups.append((await request.json())["responses"])
        await asyncio.sleep(seconds)
        return JSONResponse({"rewards": [float(text) for text in groups[-1]]})

    with running(Starlette(routes=[Route("/v1/rewards", rewards, methods=["POST"])])) as url:
        yield url, groups


def sample(number: int, uid: str = "u", content: Any = "Which?") -> Any:
    """One rollout as verl's agent loop hands it over, which answers with a number."""
    turns = np.array([{"role": "user", "content": content}], dtype=object)
    batch = {"responses": np.array([number, 0]), "attention_mask": np.array([1, 1, 1, 0])}
    return [SimpleNamespace(non_tensor_batch={"raw_prompt": turns, "uid": uid}, batch=batch, meta_info={})]


def run(
    module: Any, monkeypatch: pytest.MonkeyPatch, url: str, main: Callable[[Any], Awaitable[Any]], deadline_s: float
) -> Any:
    """Run ``main`` with a manager of groups of two; afterwards nobody waits there."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    monkeypatch.setenv("REWARDLAB_DEADLINE_S", str(deadline_s))
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=Rollout()))

    async def whole() -> Any:
        manager = module.JudgeGroups(config, Words(), None)
        result = await main(manager)
        assert manager._waiting == {}
        return result

    return asyncio.run(whole())


async def score(manager: Any, item: Any, after_s: float = 0.0) -> Any:
    await asyncio.sleep(after_s)
    try:
        return (await manager.run_single(item))["reward_score"]
    except (EndpointError, DataError) as error:
        return error


@pytest.mark.slow
def test_judging_may_outlast_the_wait_for_the_group(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes before the deadline, the judge's answer after it: both are paid, for they were compared."""

    async def main(manager: Any) -> Any:
        return await asyncio.gather(score(manager, sample(1)), score(manager, sample(2), 0.7))

    with judge(seconds=0.6) as (url, groups):
        assert run(module, monkeypatch, url, main, deadline_s=1.0) == [1, 2]
    assert groups == [["1", "2"]]


@pytest.mark.slow
def test_a_group_that_is_not_whole_is_dissolved(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, with how many came; one that comes later is not compared with those that have gone."""

    async def main(manager: Any) -> Any:
        first = await score(manager, sample(1))
        return first, await score(manager, sample(2)), await asyncio.gather(*(score(manager, sample(n)) for n in (3, 4)))

    with judge() as (url, groups):
        first, late, whole = run(module, monkeypatch, url, main, deadline_s=0.3)
    for error in (first, late):
        assert isinstance(error, EndpointError)
        assert "1 of the 2 samples of a prompt came within 0.3 s" in str(error)
    assert whole == [3, 4]
    assert groups == [["3", "4"]]


@pytest.mark.slow
def test_the_place_of_one_that_is_cancelled_is_taken_by_its_next_try(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a rollout would be compared with itself."""

    async def main(manager: Any) -> Any:
        task = asyncio.create_task(score(manager, sample(1)))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.sleep(0.1)
        return await asyncio.gather(score(manager, sample(1)), score(manager, sample(2)))

    with judge() as (url, groups):
        assert run(module, monkeypatch, url, main, deadline_s=5) == [1, 2]
    assert groups == [["1", "2"]]


def test_a_prompt_without_its_image_is_refused(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every sample of it."""

    async def main(manager: Any) -> Any:
        items = [sample(n, content=[{"type": "image"}, {"type": "text", "text": "Which?"}]) for n in (1, 2)]
        return await asyncio.gather(*(score(manager, item) for item in items))

    errors = run(module, monkeypatch, "http://127.0.0.1:9", main, deadline_s=5)
    assert [type(error) for error in errors] == [DataError] * 2
