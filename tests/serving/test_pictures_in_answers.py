"""A picture in an answer is refused at every door: the judge would be shown the rest of the answer, and reward that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules, ServerOptions
from tests.support.scripted_judge import QUESTION, handler
from tests.support.serving import in_process, judge_of

DATA = "data:image/png;base64,iVBORw0KGgo="
USER = {"role": "user", "content": QUESTION}
TEXT = {"type": "output_text", "text": "I say 3."}
URL_PART = {"type": "image_url", "image_url": {"url": DATA}}
INPUT_PART = {"type": "input_image", "image_url": DATA}
MADE = {"type": "image_generation_call", "result": "iVBORw0KGgo="}


def said(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts), **fields}


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(parts), **fields}]}


def compared(*items: Any) -> dict[str, Any]:
    return {"conversation_history": [USER], "response_objs": [{"output": list(items)}] * 2}


def verified(*items: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": QUESTION}, "response": {"output": list(items)}}


def scored(document: Any) -> dict[str, Any]:
    return {"text_1": QUESTION, "text_2": [document, "I say 1."]}


def ranked(document: Any, **fields: Any) -> dict[str, Any]:
    return {"query": QUESTION, "documents": [document, "I say 1."], **fields}


RESULT = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a plot"}, INPUT_PART]}
ANSWERS: dict[str, tuple[str, Any]] = {
    "classify": ("/classify", chat(TEXT, URL_PART)),
    "pooling": ("/pooling", chat(TEXT, INPUT_PART)),
    "embeddings": ("/v1/embeddings", chat(URL_PART)),
    "chat": ("/v1/chat/completions", chat(TEXT, {"type": "image", "image": DATA})),
    "images beside the content": ("/v1/chat/completions", chat(TEXT, images=[URL_PART])),
    "sound beside the content": ("/classify", chat(TEXT, audio={"id": "1"})),
    "a call of a tool": ("/classify", chat(tool_calls=[{"function": {"name": "draw", "arguments": "{}"}}])),
    "compare": ("/compare", compared(said(TEXT, INPUT_PART))),
    "compare, pictures alone": ("/compare", compared(MADE)),
    "compare, a tool's picture": ("/compare", compared(said(TEXT), RESULT)),
    "compare, an unknown item": ("/compare", compared(said(TEXT), {"type": "computer_call_output", "output": {}})),
    "verify": ("/verify", verified(said(TEXT, URL_PART))),
    "verify, pictures alone": ("/verify", verified(MADE)),
    "score": ("/score", scored({"content": [{"type": "text", "text": "a"}, URL_PART]})),
    "score, beside a text": ("/score", scored({"text": "a", "image_url": DATA})),
    "score, parts beside a text": ("/v1/score", scored({"text": "a", "content": [URL_PART]})),
    "rerank": ("/rerank", ranked({"text": "a", "image": DATA})),
    "rerank, several": ("/v2/rerank", ranked({"text": "a", "images": [DATA]})),
    "rerank, a video": ("/v1/rerank", ranked({"title": "a", "video": "upload:1"}, rank_fields=["title"])),
    "infinity": ("/infinity/rerank", ranked({"text": "a", "images": [DATA]})),
    "sglang": ("/sglang/v1/rerank", ranked({"content": [URL_PART]})),
    "rewards": ("/v1/rewards", {"question": QUESTION, "responses": [[TEXT, INPUT_PART], "I say 1."]}),
    "judge": ("/v1/judge", {"question": QUESTION, "responses": [[TEXT, INPUT_PART], "I say 1."]}),
    "get_reward": ("/get_reward", {"query": [[URL_PART], "a"]}),
    "slime": ("/slime", {"prompt": QUESTION, "response": [URL_PART]}),
    "evaluation": ("/v1/score/evaluation", {"messages": [[URL_PART]]}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = create_app(
        judge_of(handler),
        ServerOptions(rules=GroupRules(group_size=2), limits=Limits(group_timeout=5)),
    )
    with in_process(app) as client:
        yield client


def num_judged(client: httpx.Client) -> int:
    return int(client.get("/v1/status").json()["counts"].get("asked", 0))


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_with_a_picture(client: httpx.Client, name: str) -> None:
    """422 with what the answer holds, for two members of a group as for one; nothing is judged."""
    path, body = ANSWERS[name]
    judged, told = num_judged(client), list[httpx.Response]()
    members = [threading.Thread(target=lambda: told.append(client.post(path, json=body))) for _ in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert [(answer.status_code, answer.text) for answer in told if answer.status_code != 422] == []
    assert num_judged(client) == judged


@pytest.mark.parametrize("name", ["classify", "compare", "verify", "score"])
def test_the_sentence_has_a_cure(client: httpx.Client, name: str) -> None:
    path, body = ANSWERS[name]
    sentence = client.post(path, json=body).json()["error"]
    assert "contains an image" in sentence
    assert "response_images" in sentence


LOST = {
    "an image beside a message": (
        "/classify",
        {"messages": [USER | {"images": [DATA]}, {"role": "assistant", "content": "a"}]},
    ),
    "an item of the history": ("/compare", compared(said(TEXT)) | {"conversation_history": [USER, MADE]}),
    "images of a query": ("/score", {"text_1": {"text": QUESTION, "images": [DATA]}, "text_2": ["a", "b"]}),
    "a chat to complete": ("/v1/chat/completions", {"messages": [USER | {"images": [DATA]}]}),
}


@pytest.mark.parametrize("name", LOST)
def test_a_question_keeps_its_pictures(client: httpx.Client, name: str) -> None:
    """What a door does not read of a question is refused, too."""
    path, body = LOST[name]
    assert client.post(path, json=body).status_code == 422


def test_what_a_tool_returns_belongs_to_the_question(client: httpx.Client) -> None:
    """Its texts are read; its pictures are pictures of the conversation."""
    tool = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "a plot"}]}
    answer = client.post("/compare", json=compared(said(TEXT), tool) | {"conversation_history": [USER, tool]})
    assert (answer.status_code, answer.json().get("rewards")) == (200, [0.0, 0.0])
