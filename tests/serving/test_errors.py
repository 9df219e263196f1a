"""Every failure has one shape, and below OpenAI's paths the one that its clients read; none is a bare text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.service import ServerOptions
from tests.support.scripted_judge import ANSWERS, QUESTION, handler
from tests.support.servers import running

GOOD = {"Authorization": "Bearer alpha"}
ONCE = {"Authorization": "Bearer once"}
PAIR: dict[str, Any] = {"question": QUESTION, "responses": ANSWERS[:2]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    judge = GenerativeJudge(ScriptedSampler(handler), load_template("plain"))
    app = create_app(judge, ServerOptions(keys=[Key.of("alpha", max_bytes=5000), Key.of("once", per_minute=1)]))

    @app.get("/broken")
    @app.get("/v1/models/broken/path")
    async def broken() -> None:
        raise ZeroDivisionError

    app.router.routes[:0] = [app.router.routes.pop() for _ in range(2)]  # before the paths of models
    with running(app) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"question": "q",}', "the body is not valid JSON (at character "),
        (b'{"question": "q", "respones": ["a", "b"]}', "respones: there is no such field; did you mean 'responses'?"),
        (b'{"question": "q", "responses": ["a", "b"], "image": "x"}', "image: there is no such field; did you mean 'images'?"),
        (b'{"question": "q", "responses": ["a", "b"], "zzz": 1}', "zzz: there is no such field"),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(client: httpx.Client, body: bytes, sentence: str) -> None:
    answer = client.post("/v1/judge", content=body, headers={"Content-Type": "application/json", **GOOD})
    assert sentence in answer.json()["error"]


def test_a_rewards_request_that_contradicts_itself(client: httpx.Client) -> None:
    answer = client.post("/v1/rewards", json={**PAIR, "strategy": "anchor"}, headers=GOOD)
    assert answer.json()["error"].startswith("the strategy anchor needs an anchor")


# Method, path, what is sent, the status and the word for it.
REQUESTS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/nothing", {}, 404, "path"),
    ("GET", "/v1/judge", {}, 405, "method"),
    ("POST", "/v1/judge", {"json": {**PAIR, "votes": 0}}, 422, "input"),
    ("POST", "/v1/judge", {"json": {**PAIR, "images": ["upload:x"]}}, 422, "media"),
    ("POST", "/v1/judge", {"content": '{"question": NaN}', "headers": {"Content-Type": "application/json"}}, 400, "malformed"),
    ("POST", "/v1/judge", {"json": {**PAIR, "question": "x" * 6000}}, 413, "toolarge"),
    ("POST", "/v1/judge", {"json": {**PAIR, "question": "down"}}, 503, "enginefailed"),
    ("POST", "/v1/judge", {"json": PAIR, "headers": {"Authorization": "Bearer wrong"}}, 401, "key"),
    ("GET", "/broken", {}, 500, "failed"),
    ("GET", "/v1/responses", {}, 404, "path"),
    ("PUT", "/v1/embeddings", {}, 405, "method"),
    ("POST", "/v1/embeddings", {"json": {"input": 5}}, 422, "input"),
    ("POST", "/v1/embeddings", {"json": {"input": "no marks"}}, 422, "data"),
    ("POST", "/v1/chat/completions", {"json": {"messages": [{"role": "user", "content": "down"}]}}, 503, "enginefailed"),
    ("POST", "/v1/chat/completions", {"json": {"messages": [], "user": "x" * 6000}}, 413, "toolarge"),
    ("GET", "/v1/models", {"headers": {"Authorization": "Bearer wrong"}}, 401, "key"),
    ("GET", "/v1/models/broken/path", {}, 500, "failed"),
]


@pytest.mark.parametrize(("method", "path", "sent", "code", "status"), REQUESTS)
def test_one_shape(url: str, method: str, path: str, sent: dict[str, Any], code: int, status: str) -> None:
    """A sentence and a word, whoever refuses: routing, reading, validation, middleware, judge, a fault of the server."""
    # Not through a client that keeps connections: the server closes one after a fault of its own.
    response = httpx.request(method, url + path, **{**sent, "headers": {**GOOD, **sent.get("headers", {})}})
    assert response.status_code == code
    body = response.json()
    if path.startswith(("/v1/models", "/v1/embeddings", "/v1/chat", "/v1/responses")):
        assert set(body) == {"error", "request_id"}
        assert set(body["error"]) == {"message", "type", "code", "param"}
        assert (body["error"]["code"], " " in body["error"]["message"]) == (status, True)
    else:
        assert set(body) - {"detail"} == {"error", "status", "request_id"}
        assert (body["status"], " " in body["error"]) == (status, True)


def test_a_key_beyond_its_rate(client: httpx.Client) -> None:
    """429 with a word of its own, in both shapes: the queue is not what is full."""
    client.get("/v1/status", headers=ONCE)
    told = client.get("/v1/status", headers=ONCE)
    assert (told.status_code, told.json()["status"]) == (429, "rate")
    assert int(told.headers["Retry-After"]) >= 1
    assert client.get("/v1/models", headers=ONCE).json()["error"]["type"] == "rate_limit_error"


def test_the_cure_is_named(client: httpx.Client) -> None:
    """Which method the path takes, and that a body without its type is no JSON."""
    told = client.get("/v1/judge", headers=GOOD)
    assert told.headers["Allow"] == "POST"
    assert told.json()["error"] == "/v1/judge takes POST, not GET"
    untyped = client.post(
        "/v1/judge", content="question=x", headers={**GOOD, "Content-Type": "application/x-www-form-urlencoded"}
    )
    assert "Content-Type: application/json" in untyped.json()["error"]


def test_a_batch_of_many_faults(client: httpx.Client) -> None:
    """Its length is checked before its parts are, and of their errors the first few are listed."""
    long = client.post(
        "/v1/judge/batch", content="[" + ",".join(["{}"] * 1100) + "]", headers={**GOOD, "Content-Type": "application/json"}
    )
    assert (long.status_code, len(long.content) < 1000) == (413, True)
    assert "the body has 1,100 entries" in long.json()["error"]
    wrong = client.post("/v1/judge/batch", json=[{f"k{n}": 0 for n in range(20)}] * 20, headers=GOOD).json()
    assert len(wrong["detail"]) == 10
    assert wrong["error"].endswith("; and 19 more")  # of the first part: question, responses and 20 unknown keys


def test_as_the_openai_package_reads_them(url: str) -> None:
    """Its exceptions have the sentence, the word, the type and the field."""
    api = openai.OpenAI(base_url=f"{url}/v1", api_key="alpha", max_retries=0)
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        api.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}], temperature=99)
    assert (refused.value.code, refused.value.type, refused.value.param) == ("input", "invalid_request_error", "temperature")
    with pytest.raises(openai.AuthenticationError, match="no valid API key"):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
