"""What the client does with a server's failures: what passes is waited for, what no try would cure ends the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rewardlab.errors import EndpointError
from rewardlab.integrations import client as client_module
from rewardlab.integrations import openrlhf
from rewardlab.integrations.client import RewardClient
from rewardlab.serving.limits import Limits
from rewardlab.serving.schemas import MAX_CHARS
from tests.support.scripted_judge import ANSWERS, QUESTION, handler
from tests.support.servers import running
from tests.support.serving import app_of

GOOD = (200, {"rewards": [1.0, -1.0]})
FULL = (429, {"error": "full", "status": "overloaded"})
UNJUDGED = (503, {"error": "no verdict", "status": "unjudged"})


@contextmanager
def scripted(*answers: tuple[int, Any], path: str = "/v1/rewards") -> Iterator[tuple[str, list[Any]]]:
    """A server that gives these answers in turn, the last one for ever; with the bodies that it was sent."""
    bodies: list[Any] = []

    async def answer(request: Request) -> Response:
        bodies.append(await request.json())
        code, body = answers[min(len(bodies), len(answers)) - 1]
        return JSONResponse(body, code, {"Retry-After": "0.01"})

    with running(Starlette(routes=[Route(path, answer, methods=["POST"])])) as url:
        yield url, bodies


def rewards(url: str, responses: list[str] | None = None, **options: Any) -> list[float | None]:
    return asyncio.run(RewardClient(url, **options).rewards("Which?", responses or ["a", "b"]))


def server(**limits: int) -> Any:
    """The real one, with bounds."""
    return app_of(handler, limits=Limits(**limits))


def test_a_group_beyond_the_bound_ends_the_run() -> None:
    """Every group of the run would be refused; the server's sentence has both numbers and the name of the bound."""
    with running(server(responses=4)) as url:
        assert rewards(url, [f"I say {n}." for n in range(4)]) == pytest.approx([-1, -1 / 3, 1 / 3, 1])
        with pytest.raises(EndpointError, match=r"5 responses .* at most 4 \(its --limit responses\).*smaller"):
            rewards(url, [f"I say {n}." for n in range(5)])


def test_a_schema_that_takes_fewer_responses_ends_the_run() -> None:
    """As an older server says it, and as this one does beyond 1,024."""
    sentence = "responses: List should have at most 32 items after validation, not 33"
    with scripted((422, {"error": sentence, "status": "input"})) as (url, _), pytest.raises(EndpointError, match="at most 32"):
        rewards(url)


def test_a_body_that_is_too_large_ends_the_run() -> None:
    with running(server(json_bytes=1_000)) as url, pytest.raises(EndpointError, match=r"413.*--limit json_bytes"):
        rewards(url, ["a" * 1_000, "b"])


def test_a_group_that_is_at_fault_itself_does_not_end_the_run() -> None:
    """Its image is none: no reward for it, and the next group has its own."""
    with running(server()) as url:
        client = RewardClient(url)
        assert asyncio.run(client.rewards(QUESTION, ANSWERS, ["data:image/png;base64,AAAA"])) == [None] * 3
        assert asyncio.run(client.rewards(QUESTION, ANSWERS)) == [-1, 1, 0]
        assert client.num_failed == 3


def test_a_response_that_is_too_long_has_no_reward_and_the_others_have(caplog: pytest.LogCaptureFixture) -> None:
    """It is not sent: the server would refuse the group. One alone beside it has nothing to be compared with but an anchor."""
    endless = "x" * (MAX_CHARS + 1)
    with running(server()) as url, caplog.at_level(logging.WARNING, client_module.__name__):
        assert rewards(url, [endless, *ANSWERS]) == [None, -1, 1, 0]
        assert "1 of 4 responses have more than 100000 characters" in caplog.text
        assert rewards(url, [endless, "I say 1."]) == [None, None]
        assert "cannot be compared" in caplog.text
        assert rewards(url, ["I say 3.", endless], strategy="anchor", anchor="I say 2.") == [1, None]
        assert rewards(url, ["x" * MAX_CHARS, "I say 1."]) == [-1, 1]


@pytest.mark.slow
def test_a_full_server_takes_none_of_the_draws() -> None:
    """A group without a verdict is drawn three times; tries that no judge answered are none."""
    with scripted(FULL, FULL, FULL, UNJUDGED, FULL, UNJUDGED, GOOD) as (url, bodies):
        assert rewards(url) == [1, -1]
        assert len(bodies) == 7
    with scripted(FULL, UNJUDGED, UNJUDGED, UNJUDGED, GOOD) as (url, bodies):
        assert rewards(url) == [None, None]
        assert len(bodies) == 4


def test_half_a_character_is_sent_as_a_question_mark() -> None:
    """A policy may write one half of a surrogate pair, which is no character; the rest of what it wrote is judged."""
    with scripted(GOOD) as (url, bodies):
        assert rewards(url, ["a\ud800é", "b"]) == [1, -1]
        assert bodies[0]["responses"] == ["a?é", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("body", [{"x": 1}, [1.0, -1.0], {"rewards": [1.0]}, {"rewards": None}])
def test_another_server_ends_the_run(body: Any) -> None:
    """Who answers 200 and gives no rewards will never give one."""
    with scripted((200, body)) as (url, _), pytest.raises(EndpointError, match="expected a `rewardlab serve`"):
        rewards(url)
    with scripted((200, body), path="/get_reward") as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv("REWARDLAB_URL", url)
        with pytest.raises(EndpointError, match="expected a `rewardlab serve`"):
            openrlhf.reward_func(["q a"], ["q"], ["red"])
