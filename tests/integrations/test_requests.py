"""What the client and the adapters send: whose options count, which responses are a group, and the judge for verifiers."""

from __future__ import annotations

import asyncio
import importlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.errors import EndpointError
from rewardlab.integrations import verl
from rewardlab.integrations.client import RewardClient, image_url, request_rewards
from tests.support.images import png
from tests.support.servers import running


class Server:
    """Keeps the bodies it is sent; the reward of a response is its number, None of "?"."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.groups: list[str | None] = []
        routes = [Route("/v1/rewards", self.rewards, methods=["POST"]), Route("/get_reward", self.sample, methods=["POST"])]
        self.app = Starlette(routes=routes)

    async def sample(self, request: Request) -> JSONResponse:
        self.groups.append(request.headers.get("X-Group-Key"))
        self.bodies.append(await request.json())
        return JSONResponse({"rewards": [1.0], "scores": [1.0], "extra_logs": {"judge_reward": [1.0], "judge_reward/a": [0.5]}})

    async def rewards(self, request: Request) -> JSONResponse:
        self.bodies.append(await request.json())
        numbers = [None if text == "?" else float(text) for text in self.bodies[-1]["responses"]]
        return JSONResponse({"rewards": numbers, "components": {"style": [-1.0] * len(numbers)}})


def test_samples_of_a_prompt_name_one_group(server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By it a balancer brings them together; whatever a dataset holds is a word that a header may have."""
    keeper, url = server
    monkeypatch.setenv("REWARDLAB_URL", url)
    for question, answer in [("Which?\nä", "a"), ("Which?\nä", "b"), ("Which?", "c")]:
        asyncio.run(verl.compute_score("demo", answer, None, {"question": question}))
    first, second, other = keeper.groups
    assert first == second != other
    assert first is not None
    assert first.isalnum()


def test_criteria_of_a_sample(server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """verl expects the same parts of every sample: of a criterion that the judge's checks do not name, NaN."""
    keeper, url = server
    monkeypatch.setenv("REWARDLAB_URL", url)
    info = {"question": "q", "criteria": np.array([{"name": "a", "weight": 2.0}, {"name": "b", "weight": 1.0}])}
    score = asyncio.run(verl.compute_score("demo", "x", None, info))
    assert (score["score"], score["judge_reward/a"], math.isnan(score["judge_reward/b"])) == (1.0, 0.5, True)
    assert keeper.bodies[-1]["labels"][0]["criteria"] == [{"name": "a", "weight": 2.0}, {"name": "b", "weight": 1.0}]
    assert asyncio.run(verl.compute_score("demo", "x", None, {"question": "q"})) == {"score": 1.0}


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    server = Server()
    with running(server.app) as url:
        yield server, url


def test_the_options_of_a_call_come_first(server: tuple[Server, str]) -> None:
    """Before those of the client, which stand for all that a call does not say."""
    kept, url = server
    client = RewardClient(url, votes=1, strategy="best")
    assert asyncio.run(client.rewards("q", ["0.5", "?"], votes=3)) == [0.5, None]
    body = {"question": "q", "responses": ["0.5", "?"], "images": [], "timeout_s": 600, "votes": 3, "strategy": "best"}
    assert kept.bodies == [body] * 3  # one response has no verdict: asked again
    assert client.num_failed == 1


def test_responses_about_the_same_images_are_a_group(server: tuple[Server, str]) -> None:
    """One question about two images is two groups, however the rows are mixed; rewards come in the order of the rows."""
    kept, url = server
    red, small = png(), png((14, 14))
    rows = [(red, "1"), (small, "2"), (red, "3"), (small, "4")]
    got = asyncio.run(request_rewards(RewardClient(url), ["q"] * 4, [text for _, text in rows], [[image] for image, _ in rows]))
    assert got == [1, 2, 3, 4]
    sent = {body["images"][0]: body["responses"] for body in kept.bodies}
    assert sent == {image_url(red): ["1", "3"], image_url(small): ["2", "4"]}
    assert len(kept.bodies) == 2


class Config:
    """In place of verifiers' settings: class attributes are the defaults."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            assert hasattr(type(self), name)
            setattr(self, name, value)


class Judge:
    """In place of verifiers' judge, generic in its result and its settings."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __class_getitem__(cls, _: Any) -> type[Judge]:
        return cls


@pytest.fixture
def verifiers_judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Our module, on what its documentation says of verifiers, which is not installed here."""
    package, api = ModuleType("verifiers"), ModuleType("verifiers.v1")
    for name, value in {"JudgeConfig": Config, "Judge": Judge, "TaskData": object, "Trace": object}.items():
        setattr(api, name, value)
    package.v1 = api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.setitem(sys.modules, "verifiers.v1", api)
    monkeypatch.delitem(sys.modules, "rewardlab.integrations.verifiers", raising=False)
    yield importlib.import_module("rewardlab.integrations.verifiers")
    sys.modules.pop("rewardlab.integrations.verifiers", None)


def test_the_judge_for_verifiers(verifiers_judge: Any, server: tuple[Server, str]) -> None:
    """The last reply against the anchor of the task, with the prompt's images; what cannot be judged is an error."""
    kept, url = server
    judge = verifiers_judge.PairwiseJudge(verifiers_judge.PairwiseJudgeConfig(base_url=url, anchor_field="reference", votes=5))
    urls = [image_url(png()), image_url(png((14, 14)))]
    parts = [
        SimpleNamespace(image_url=SimpleNamespace(url=urls[0])),
        SimpleNamespace(text="q?"),
        SimpleNamespace(image_url=urls[1]),
    ]
    prompt = [SimpleNamespace(content="be brief"), SimpleNamespace(content=parts)]
    task = SimpleNamespace(prompt=prompt, prompt_text="q?", reference="the best")
    assert asyncio.run(judge.score(task, SimpleNamespace(last_reply="0.25"))) == 0.25
    assert kept.bodies == [
        {
            **{"question": "q?", "responses": ["0.25"], "images": urls, "timeout_s": 600},
            **{"strategy": "anchor", "anchor": "the best", "votes": 5},
        }
    ]
    with pytest.raises(EndpointError, match="no reward for a reply"):
        asyncio.run(judge.score(task, SimpleNamespace(last_reply="?")))
    text = SimpleNamespace(prompt="q?", prompt_text="q?", reference="the best")
    asyncio.run(judge.score(text, SimpleNamespace(last_reply="1")))
    assert kept.bodies[-1]["images"] == []


class Rubric:
    """In place of OpenEnv's: rubrics that are set as attributes are children."""

    last_score: float | None = None

    def __init__(self, rubrics: dict[str, Rubric] | None = None) -> None:
        self._named = dict(rubrics or {})

    def __getitem__(self, name: str) -> Rubric:
        return self._named[name]

    def children(self) -> Iterator[Rubric]:
        yield from self._named.values()

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        yield from self._named.items()


@pytest.fixture
def openenv(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Our module, on what OpenEnv 0.3 has, which is not installed here."""
    for name in ("openenv", "openenv.core", "openenv.core.rubrics"):
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
    module.Rubric, module.RubricDict = Rubric, Rubric  # type: ignore[attr-defined]
    yield importlib.import_module("rewardlab.integrations.openenv")
    sys.modules.pop("rewardlab.integrations.openenv", None)


def test_the_rubric_for_openenv(openenv: Any, server: tuple[Server, str]) -> None:
    """A score in 0..1 against the anchor; each criterion is a child with its own, and a failure is none."""
    kept, url = server
    rubric = openenv.PairwiseRubric(
        lambda action, observation: openenv.ScoredAnswer(observation, action, anchor="the best", images=(png(),)),
        criteria=["style ", {"name": "accuracy", "weight": 2}], url=url, votes=3,
    )  # fmt: skip
    with pytest.raises(EndpointError, match="no check of this criterion yet"):
        rubric.criteria["style"].forward("0.5", "q?")
    assert asyncio.run(rubric.forward("0.5", "q?")) == 0.75
    assert rubric.criteria["style"].forward("0.5", "q?") == 0.0
    assert rubric.criteria["accuracy"].last_score is None
    assert kept.bodies[-1] == {
        **{"question": "q?", "responses": ["0.5"], "images": [image_url(png())], "strategy": "anchor", "votes": 3},
        **{"anchor": "the best", "criteria": ["style ", {"name": "accuracy", "weight": 2}]},
    }
    with pytest.raises(EndpointError, match="no reward for an answer"):
        asyncio.run(rubric.forward("?", "q?"))
    assert rubric.criteria["style"].last_score is None
