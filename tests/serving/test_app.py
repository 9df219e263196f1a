"""The API of rewardlab over HTTP, and the one shape of its errors."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from rewardlab.data.images import to_data_url
from rewardlab.prompts import load_template
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import ServerOptions
from rewardlab.types import Message
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, QUESTION, handler
from tests.support.servers import running
from tests.support.serving import in_process, judge_of

PLAIN = load_template("plain")
BODY: dict[str, Any] = {"question": "Which?", "responses": ["it is red", "it is blue"]}


def prefers_red(prompt: tuple[Message, ...], draw: int) -> str:
    """Names the response that says red, wherever it is shown; every third draw says nothing."""
    if draw % 3 == 2:
        return "hm"
    text = prompt[0].text
    return f"<think>{len(prompt[0].images)} images</think><answer>{1 if text.find('red') < text.find('blue') else 2}</answer>"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    judge = judge_of(prefers_red)
    with in_process(create_app(judge)) as client:
        yield client


def test_the_front_door_leads_to_the_page(client: httpx.Client) -> None:
    """Who opens the address in a browser sees something."""
    answer = client.get("/", follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, "/ui")


def test_health(client: httpx.Client) -> None:
    """Which judge, in which words it is asked."""
    answer = client.get("/health").json()
    assert len(answer.pop("judge_hash")) == len(answer.pop("judge_config_hash")) == 16
    assert answer.pop("judge_config") == {"judge": "scripted"}
    assert answer == {"status": "ok", "judge": "scripted", "version": 1, "template": "plain", "template_hash": PLAIN.hash}


def test_judge_in_both_orders(client: httpx.Client) -> None:
    """Three votes an order, one of them unreadable: a share of the valid ones, and every vote as it was cast."""
    answer = client.post("/v1/judge", json={**BODY, "votes": 3}).json()
    assert (answer["p_first_better"], answer["outcome"], answer["num_valid"]) == (1.0, "response_0", 4)
    assert [(v["order"], v["status"], v["winner"]) for v in answer["votes"]] == [
        *[("given", "ok", 0), ("given", "ok", 0), ("given", "no_verdict", None)],
        *[("swapped", "ok", 0), ("swapped", "ok", 0), ("swapped", "no_verdict", None)],
    ]
    for order in ("given", "swapped"):
        one = client.post("/v1/judge", json={**BODY, "orders": order}).json()
        assert ([v["order"] for v in one["votes"]], one["outcome"]) == ([order], "response_0")
    swapped = client.post("/v1/judge", json={**BODY, "responses": BODY["responses"][::-1], "votes": 3}).json()
    assert (swapped["p_first_better"], swapped["outcome"]) == (0.0, "response_1")


def test_images_as_data_urls_and_uploads(client: httpx.Client) -> None:
    """Both reach the judge; the same bytes get the same id."""
    first, second = (client.post("/v1/uploads", content=png()).json()["id"] for _ in range(2))
    assert first == second
    images = [to_data_url(png()), f"upload:{first}"]
    answer = client.post("/v1/judge", json={**BODY, "images": images}).json()
    assert answer["votes"][0]["text"].startswith("<think>2 images")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"responses": ["a", "a"]}, "equal"),
        ({"responses": ["a", " "]}, "empty"),
        ({"responses": ["a"]}, "responses: expected two responses, got 1;"),
        ({"responses": ["a", "b", "c"]}, "/v1/rewards compares more"),
        ({"question": ""}, "question"),
        ({"votes": 0}, "votes"),
        ({"votes": 1000}, "votes"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"orders": "all"}, "orders"),
        ({"vote": 3}, "vote"),
        ({"images": ["http://host/x.png"]}, "not fetched"),
        ({"images": ["/etc/passwd"]}, "not fetched"),
        ({"images": ["upload:nothing"]}, "send it again"),
        ({"images": ["data:image/png;base64,AAAA"]}, "not a readable image"),
        ({"images": ["data:image/png;base64,@"]}, "base64"),
        ({"images": ["data:image/png;base64," + base64.b64encode(png((1, 1))).decode()]}, "is too small"),
    ],
)
def test_bad_requests(client: httpx.Client, change: dict[str, Any], said: str) -> None:
    """422 with a sentence; nothing is judged."""
    answer = client.post("/v1/judge", json=BODY | change)
    assert answer.status_code == 422
    assert said in answer.text


def test_bad_uploads(client: httpx.Client) -> None:
    """No image, an empty body, more than an image may be."""
    for body, said in [(b"hello", "not a readable image"), (b"", "empty"), (b"x" * 20_000_001, "more than 20,000,000")]:
        answer = client.post("/v1/uploads", content=body)
        assert answer.status_code == 422
        assert said in answer.json()["error"]


def test_the_api_describes_itself(client: httpx.Client) -> None:
    """/openapi.json names every path and every field of a request."""
    spec = client.get("/openapi.json").json()
    native = {"/health", "/ready", "/metrics", "/v1/models", "/v1/uploads", "/v1/judge", "/v1/rewards", "/v1/judge/batch"}
    assert native < set(spec["paths"])
    fields = spec["components"]["schemas"]["JudgeRequest"]["properties"]
    assert set(fields) == {
        *("question", "responses", "images", "videos", "criteria", "frames", "votes", "orders", "policy", "stop_error"),
        *("error", "seed", "priority", "timeout_s"),
    }
    for path, item in spec["paths"].items():
        body = item.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if name := body.get("$ref", body.get("items", {}).get("$ref", "")).rpartition("/")[2]:
            assert "example" in spec["components"]["schemas"][name], f"{path} shows no example of {name}"


def test_a_body_without_end_is_not_read_to_its_end(client: httpx.Client) -> None:
    """413 once the limit is passed, whatever the headers say."""

    def chunks() -> Iterator[bytes]:
        for _ in range(2 * Limits().json_bytes // 1_000_000):
            yield b" " * 1_000_000

    answer = client.post("/v1/judge", content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "larger than" in answer.text
    assert client.get("/health").status_code == 200


GOOD = {"Authorization": "Bearer alpha"}
PAIR: dict[str, Any] = {"question": QUESTION, "responses": ANSWERS[:2]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    judge = judge_of(handler)
    app = create_app(judge, ServerOptions(keys=[Key.of("alpha", max_bytes=5000)]))

    @app.get("/broken")
    @app.get("/v1/models/broken/path")
    async def broken() -> None:
        raise ZeroDivisionError

    app.router.routes[:0] = [app.router.routes.pop() for _ in range(2)]  # before the paths of models
    with running(app) as address:
        yield address


@pytest.fixture(scope="module")
def error_client(url: str) -> Iterator[httpx.Client]:
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
def test_what_is_wrong_is_said_in_plain_words(error_client: httpx.Client, body: bytes, sentence: str) -> None:
    answer = error_client.post("/v1/judge", content=body, headers={"Content-Type": "application/json", **GOOD})
    assert sentence in answer.json()["error"]


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
    ("GET", "/v1/responses", {}, 405, "method"),
    ("GET", "/v1/completions", {}, 404, "path"),
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
    # Not through a error_client that keeps connections: the server closes one after a fault of its own.
    response = httpx.request(method, url + path, **{**sent, "headers": {**GOOD, **sent.get("headers", {})}})
    assert response.status_code == code
    body = response.json()
    if path.startswith(("/v1/models", "/v1/embeddings", "/v1/chat", "/v1/completions", "/v1/responses")):
        assert set(body) == {"error", "request_id"}
        assert set(body["error"]) == {"message", "type", "code", "param"}
        assert (body["error"]["code"], " " in body["error"]["message"]) == (status, True)
    else:
        assert set(body) - {"detail"} == {"error", "status", "request_id"}
        assert (body["status"], " " in body["error"]) == (status, True)


def test_the_cure_is_named(error_client: httpx.Client) -> None:
    """Which method the path takes, and that a body without its type is no JSON."""
    told = error_client.get("/v1/judge", headers=GOOD)
    assert told.headers["Allow"] == "POST"
    assert told.json()["error"] == "/v1/judge takes POST, not GET"
    untyped = error_client.post(
        "/v1/judge", content="question=x", headers={**GOOD, "Content-Type": "application/x-www-form-urlencoded"}
    )
    assert "Content-Type: application/json" in untyped.json()["error"]


def test_a_batch_of_many_faults(error_client: httpx.Client) -> None:
    """Its length is checked before its parts are, and of their errors the first few are listed."""
    long = error_client.post(
        "/v1/judge/batch", content="[" + ",".join(["{}"] * 1100) + "]", headers={**GOOD, "Content-Type": "application/json"}
    )
    assert (long.status_code, len(long.content) < 1000) == (413, True)
    assert "the body has 1,100 entries" in long.json()["error"]
    wrong = error_client.post("/v1/judge/batch", json=[{f"k{n}": 0 for n in range(20)}] * 20, headers=GOOD).json()
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
