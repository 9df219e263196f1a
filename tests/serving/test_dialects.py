"""Every door of the server, asked over real HTTP as its framework asks: the better response has the higher reward, and a
failure is a failure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from rewardlab.data.conversations import Content, read_content
from rewardlab.data.images import to_data_url
from rewardlab.errors import DataError
from rewardlab.serving.conversations import (
    labeled_sample,
    read_conversation,
    read_label,
    split_sequence,
    strip_markup,
)
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules
from rewardlab.types import Completion, Message
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, CHATML, PROMPT, QUESTION, handler
from tests.support.servers import running
from tests.support.serving import app_of, in_process

SEEN = CHATML.format(q=f"<|vision_start|><|image_pad|><|vision_end|>{QUESTION}")
RULES: dict[str, Any] = {"rules": GroupRules(group_size=3), "limits": Limits(group_timeout=0.5)}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(app_of(**RULES)) as address:
        yield address


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with in_process(app_of(**RULES)) as made:
        yield made


@pytest.mark.parametrize("strategy", ["all_pairs", "circular", "knockout", "bradley_terry"])
def test_native_rewards(client: httpx.Client, strategy: str) -> None:
    """In the order of the answers' quality, with every comparison and its statuses."""
    body = {"question": QUESTION, "responses": ANSWERS, "strategy": strategy, "images": [to_data_url(png())]}
    told = client.post("/v1/rewards", json=body).json()
    rewards = told["rewards"]
    assert rewards[1] == max(rewards)
    assert told["tiers"][0] == [1]
    if strategy == "all_pairs":
        assert rewards == [-1, 1, 0]
        assert len(told["matches"]) == 3
    if strategy == "bradley_terry":
        assert all(deviation > 0 for deviation in told["deviations"])
    assert all(match["statuses"] == {"ok": 2} for match in told["matches"])
    assert told["num_failed"] == 0
    assert told["num_tokens"] > 0


def test_native_rewards_against_an_anchor(client: httpx.Client) -> None:
    """One response will do; the anchor has no reward of its own."""
    body = {"question": QUESTION, "responses": ANSWERS[:1], "strategy": "anchor", "anchor": "I say 2."}
    told = client.post("/v1/rewards", json=body).json()
    assert (told["rewards"], told["matches"][0]["second"], told["tiers"]) == ([-1], None, [[0]])


def test_a_failing_judge_gives_no_reward(client: httpx.Client) -> None:
    """503, and when to come back, at every door: no reward over what the engine happened to answer."""
    told = client.post("/v1/rewards", json={"question": "down", "responses": ANSWERS})
    assert (told.status_code, told.json()["status"], told.headers["Retry-After"]) == (503, "enginefailed", "5")
    for path, body in {
        "/get_reward": {"query": [f"down?{a}" for a in ANSWERS], "prompts": ["down?"] * 3},
        "/rerank": {"query": "down", "documents": ANSWERS},
    }.items():
        asked = client.post(path, json=body)
        assert (asked.status_code, asked.json()["status"], asked.headers["Retry-After"]) == (503, "enginefailed", "5")


@pytest.mark.parametrize(
    "body",
    [
        {"question": "q", "responses": ["a"]},
        {"question": "q", "responses": ["a", "b"], "strategy": "anchor"},
        {"question": "q", "responses": ["a", "b"], "anchor": "c"},
        {"question": "q", "responses": ["a"] * 129},
        {"question": "q", "responses": ["a", "b", "c", "d"], "strategy": "knockout", "budget": 1},
        {"question": "q", "responses": ["a", "b"], "budget": 9},  # which all_pairs would ignore
        {"question": "q", "responses": ["a", "b"], "reward": 1},
    ],
)
def test_bad_groups(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post("/v1/rewards", json=body).status_code == 422


def test_batches(client: httpx.Client) -> None:
    """Each of its own: a bad one does not take the others down."""
    good, bad = (
        {"question": QUESTION, "responses": ANSWERS},
        {"question": QUESTION, "responses": ANSWERS, "images": ["upload:x"]},
    )
    told = client.post("/v1/rewards/batch", json=[good, bad]).json()
    assert told[0]["rewards"] == [-1, 1, 0]
    assert "send it again" in told[1]["error"]
    pairs = [{"question": QUESTION, "responses": ANSWERS[:2]}, {"question": "down", "responses": ANSWERS[:2]}]
    told = client.post("/v1/judge/batch", json=pairs).json()
    assert [one.get("outcome") for one in told] == ["response_1", None]
    assert told[1] == {"error": "the engine failed: HTTP 503", "status": "enginefailed", "retry_after_s": 5}


def test_openrlhf_and_r1_reward(client: httpx.Client) -> None:
    """A batch with special tokens; empty ones, as several endpoints are sent; and labels that carry an image."""
    body = {"query": [PROMPT + a + "<|im_end|>" for a in ANSWERS], "prompts": [PROMPT] * 3, "labels": ["red"] * 3}
    told = client.post("/get_reward", json=body).json()
    assert told == {"rewards": [-1, 1, 0], "scores": [0, 1, 0.5], "extra_logs": {"judge_reward": [-1, 1, 0]}}
    assert client.post("/get_reward_mllm", json=body).json() == {"rewards": [-1, 1, 0]}
    del body["prompts"]
    assert client.post("/get_reward", json=body).json()["rewards"] == [-1, 1, 0]
    empty = {"query": [], "prompts": [], "labels": []}
    assert client.post("/get_reward", json=empty).json() == {"rewards": [], "scores": [], "extra_logs": {"judge_reward": []}}
    name = client.post("/v1/uploads", content=png()).json()["id"]
    label = json.dumps({"media": [f"upload:{name}"], "question": "Do you see the star?"})
    shown = {"query": [SEEN + a + "<|im_end|>" for a in ANSWERS]}
    seen = client.post("/get_reward", json={**shown, "labels": [label] * 3})
    assert seen.json()["rewards"] == [-1, 1, 0]
    assert "1 mark <image> in the text, and 0 images" in client.post("/get_reward", json=shown).json()["error"]
    blind = client.post("/get_reward", json={**body, "labels": [json.dumps({"question": "Do you see the star?"})] * 3})
    assert blind.status_code == 503


def test_one_by_one(client: httpx.Client) -> None:
    """OpenRLHF's newer way, and slime's: samples of a prompt wait for each other; one that stays alone hears of it."""

    def ask(answer: str) -> Any:
        body = {"query": [PROMPT + answer], "prompts": [PROMPT], "labels": [None]}
        return client.post("/get_reward?flat=1", json=body).json()["rewards"]

    def slime(answer: str) -> Any:
        return client.post("/slime", json={"prompt": PROMPT, "response": answer, "label": "red"}).json()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, ANSWERS)) == [-1, 1, 0]
        assert list(pool.map(slime, ANSWERS)) == [-1, 1, 0]
    alone = client.post("/slime", json={"prompt": "Another?", "response": "I say 1."})
    assert alone.status_code == 408
    assert "only 1 of 3" in alone.json()["error"]
    for bad in ({"anchor": 3}, {"media": "upload:x"}):
        assert client.post("/slime", json={"prompt": "Q?", "response": "I say 1.", "label": bad}).status_code == 422
    label = {"anchor": "I say 2."}
    assert client.post("/slime", json={"prompt": "Another?", "response": "I say 3.", "label": label}).json() == 1


def test_a_group_in_parts() -> None:
    """Where groups are collected, parts of one meet, however many responses each has; documents of a query are a whole."""
    rules = GroupRules(group_size=3, joins_parts=True)

    def ask(answers: list[str]) -> Any:
        body = {"query": [PROMPT + answer for answer in answers], "prompts": [PROMPT] * len(answers)}
        response = client.post("/get_reward", json=body)
        return response.json().get("rewards", response.status_code)

    with in_process(app_of(rules=rules, limits=Limits(group_timeout=0.5))) as client:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(ask, (ANSWERS[:2], ANSWERS[2:]))) == [[-1, 1], [0]]
            assert list(pool.map(ask, ([answer] for answer in ANSWERS))) == [[-1], [1], [0]]
        assert ask(ANSWERS) == [-1, 1, 0]
        assert ask(["I say 4.", "I say 6."]) == 408
        ranked = client.post("/rerank", json={"query": QUESTION, "documents": ANSWERS[:2]}).json()["results"]
        assert [one["index"] for one in ranked] == [1, 0]


def responses_object(text: str) -> dict[str, Any]:
    reasoning = {"type": "reasoning", "summary": []}
    return {"id": "r", "output": [reasoning, {"type": "message", "content": [{"type": "output_text", "text": text}]}]}


def test_nemo_gym(client: httpx.Client) -> None:
    """A group at once, with images in the conversation; a rollout with a principle of its own."""
    parts = [{"type": "input_text", "text": "Do you see a star?"}, {"type": "input_image", "image_url": to_data_url(png())}]
    body = {
        "conversation_history": [{"role": "user", "content": parts}],
        "response_objs": [responses_object(a) for a in ANSWERS],
    }
    told = client.post("/compare", json=body).json()
    assert told["rewards"] == [-1, 1, 0]
    assert told["comparison_results"][0] == {
        **{"response_i": 0, "response_j": 1, "judge_idx": 0},
        **{"score_1": 1, "score_2": 5, "ranking": 6},
    }
    assert told["metrics"]["num_failed"] == 0
    params = {"input": [{"role": "user", "content": QUESTION}]}

    def with_principle(answer: str) -> int:
        """A principle is part of the question: this one makes the judge fail, which is how it is heard."""
        asked = {
            "responses_create_params": params,
            "response": responses_object(answer),
            "prompt_id": "p2",
            "principle": "down",
        }
        return client.post("/verify", json=asked).status_code

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(with_principle, ANSWERS)) == [503] * 3


def test_score_and_rerank(client: httpx.Client) -> None:
    """vLLM's names old and new, Jina's, Cohere's, SGLang's; images in the query."""
    for names in (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")):
        told = client.post("/v1/score", json=dict(zip(names, (QUESTION, ANSWERS), strict=True))).json()
        assert [one["score"] for one in told["data"]] == [0, 1, 0.5]
    query = {
        "content": [{"type": "text", "text": "Do you see it?"}, {"type": "image_url", "image_url": {"url": to_data_url(png())}}]
    }
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        told = client.post(path, json={"query": query, "documents": ANSWERS, "top_n": 2}).json()["results"]
        assert [(one["index"], one["relevance_score"], one["document"]["text"]) for one in told] == [
            (1, 1, "I say 3."),
            (2, 0.5, "I say 2."),
        ]
    bare = client.post("/sglang/v1/rerank", json={"query": QUESTION, "documents": ANSWERS}).json()
    assert [one["index"] for one in bare] == [1, 2, 0]
    assert client.post("/score", json={"text_1": QUESTION}).status_code == 422
    assert client.post("/score", json={"text_1": ["a", "b"], "text_2": ANSWERS}).status_code == 422


def test_scalar_stand_ins(client: httpx.Client) -> None:
    """verl's, vLLM's and LLaMA-Factory's: whole sequences in one text, compared within the request."""
    texts = [PROMPT + a + "<|im_end|>" for a in ANSWERS]
    assert [one["probs"][-1] for one in client.post("/classify", json={"input": texts}).json()["data"]] == [-1, 1, 0]
    assert [one["embedding"][-1] for one in client.post("/v1/embeddings", json={"input": texts}).json()["data"]] == [-1, 1, 0]
    assert [one["data"][-1] for one in client.post("/pooling", json={"input": texts}).json()["data"]] == [-1, 1, 0]
    assert client.post("/v1/score/evaluation", json={"model": "m", "messages": texts}).json()["scores"] == [-1, 1, 0]
    assert client.post("/classify", json={"input": "no marks at all"}).status_code == 422


def test_the_openai_package(url: str) -> None:
    """A client no one here wrote: it lists the judge, and reads rewards as NIM's clients do, from a chat with an image."""

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as api:
            assert [one.id async for one in api.models.list()] == ["scripted"]

            async def ask(answer: str) -> str:
                parts: Any = [
                    {"type": "text", "text": "Do you see it?"},
                    {"type": "image_url", "image_url": {"url": to_data_url(png())}},
                ]
                messages: Any = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
                told = await api.chat.completions.create(model="scripted", messages=messages)
                return told.choices[0].message.content or ""

            return await asyncio.gather(*map(ask, ANSWERS))

    assert asyncio.run(main()) == ["reward:-1.0000", "reward:1.0000", "reward:0.0000"]


def test_documents_of_other_kinds(client: httpx.Client) -> None:
    """What holds no text is refused, not judged as empty."""
    query = {"query": "Do you see it?"}
    for documents in ([{"title": "a"}, {"title": "b"}], [{"text": 3}, "b"], [{"text": "a", "image": "upload:x"}, "b"]):
        assert client.post("/v1/rerank", json={**query, "documents": documents}).status_code == 422
    for bad in ({"image": "x"}, {"content": None}, ""):
        assert client.post("/v1/rerank", json={"query": bad, "documents": list(ANSWERS)}).status_code == 422
    shown = {"query": {"text": "Do you see it?", "image": to_data_url(png())}, "documents": list(ANSWERS)}
    assert [one["index"] for one in client.post("/v1/rerank", json=shown).json()["results"]] == [1, 2, 0]


def test_who_hangs_up_is_not_asked_about() -> None:
    """Over HTTP too: the request behind a slow one leaves the queue when its client closes the connection."""
    asked: list[str] = []

    def slow(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        asked.append(prompt[0].text)
        time.sleep(0.4)
        return handler(prompt, draw)

    with running(app_of(slow)) as url, ThreadPoolExecutor(1) as pool, httpx.Client(base_url=url) as client:
        first = pool.submit(client.post, "/v1/judge", json={"question": "first?", "responses": ANSWERS[:2]})
        time.sleep(0.1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/judge", json={"question": "gone?", "responses": ANSWERS[:2]}, timeout=0.2)
        assert first.result().json()["outcome"] == "response_1"
        assert client.post("/v1/judge", json={"question": "last?", "responses": ANSWERS[:2]}).status_code == 200
        assert "rewardlab_gone_total 1.0" in client.get("/metrics").text
    assert not any("gone?" in text for text in asked)


@pytest.mark.parametrize(
    ("sequence", "prompt", "found"),
    [
        (PROMPT + "It is red.<|im_end|>", PROMPT, (QUESTION, "It is red.")),
        (PROMPT + "It is red.<|im_end|>\n", "", (QUESTION, "It is red.")),
        ("Q? A.", "Q?", ("Q?", "A.")),
        ("<s>[INST] Q? [/INST] A.</s>", "", ("Q?", "A.")),
        ("USER: Q?\nASSISTANT: A.", "other", ("Q?", "A.")),
        ("A chat with a helper. USER: Q? ASSISTANT: A.</s>", "", ("Q?", "A.")),
        ("Human: Q?\n\nAssistant: A.", "", ("Q?", "A.")),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nQ?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA.<|eot_id|>",
            "",
            ("Q?", "A."),
        ),
        ("<bos><start_of_turn>user\nQ?<end_of_turn>\n<start_of_turn>model\nA.<end_of_turn>", "", ("Q?", "A.")),
        ("<|user|>\nQ?<|end|>\n<|assistant|>\nA.<|end|>", "", ("Q?", "A.")),
        ("<｜begin▁of▁sentence｜><｜User｜>Q?<｜Assistant｜>A.<｜end▁of▁sentence｜>", "", ("Q?", "A.")),
    ],
)
def test_sequences(sequence: str, prompt: str, found: tuple[str, str]) -> None:
    """Question and response of every common chat template, its marks gone."""
    sample = labeled_sample(*split_sequence(sequence, prompt))
    assert (sample.question, sample.response) == found


def test_a_response_does_not_choose_where_it_begins() -> None:
    """Words that look like a turn's begin, twice, are no begin; and an image that stayed behind is not judged without."""
    with pytest.raises(DataError, match="cannot tell"):
        split_sequence("USER: Q? ASSISTANT: Bad. ASSISTANT: Good.")
    with pytest.raises(DataError, match="cannot tell"):
        split_sequence("[INST] Q? [/INST] Bad. [/INST] Good.")
    foreign = "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\nBad. [/INST] hi <|assistant|> there"
    assert labeled_sample(*split_sequence(foreign)).question == "Q?"
    with pytest.raises(DataError, match="1 mark <image> in the text, and 0 images"):
        labeled_sample("<|vision_start|><|image_pad|><|vision_end|>Q?", "A.")
    seen = labeled_sample("<|vision_start|><|image_pad|><|vision_end|>Q?", "A.", {"media": ["upload:1"]})
    assert (seen.question, seen.images) == ("Q?", ("upload:1",))


def test_texts() -> None:
    """Parts of three APIs; several turns keep their roles; a label that is no JSON carries nothing."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "image", "image": "upload:1"}]
    assert read_content(parts) == Content("a\ufffc", ("upload:1",))
    with pytest.raises(DataError, match="audio"):
        read_content([{"type": "audio"}])
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Q?"}]
    assert read_conversation(turns) == Content("User: Hi\nAssistant: Hello\nUser: Q?")
    assert [read_label(label) for label in ("red", "{broken", None, 3, '{"media": ["x"]}')] == [
        {},
        {},
        {},
        {},
        {"media": ["x"]},
    ]
    assert strip_markup("<|im_start|>user\nQ?<|im_end|>") == "Q?"
    with pytest.raises(DataError, match="no text"):
        read_conversation([{"role": "user", "content": ""}])
    with pytest.raises(DataError, match="a message is 'Q'; expected an object"):
        read_conversation(["Q"])  # type: ignore[list-item]
