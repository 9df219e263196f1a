"""A request that the model cannot read fails alone, with a sentence: its neighbours are answered, the engine is not blamed."""

from __future__ import annotations

import asyncio
import contextvars
import json
import shutil
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.base import UNREADABLE, SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.errors import ContextLengthError, EngineFailedError
from rewardlab.serving.jobs import JudgeJob
from rewardlab.serving.judge_versions import ContextLength
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_record import REQUEST, RequestRecord
from rewardlab.serving.schedule import QueueOptions
from rewardlab.training.run.preflight import context_of
from rewardlab.types import BOTH_ORDERS, FinishReason, Judgment, Message, Part, PreferencePair
from tests.support.serving import in_process

CONTEXT = 8192  # of the checkpoint


@pytest.fixture(scope="module")
def judge(tiny_checkpoint: Path) -> GenerativeJudge:
    opened = open_generative_judge(f"hf:{tiny_checkpoint}", template="plain", max_tokens=4)
    assert isinstance(opened.sampler, HFSampler)
    opened.sampler._isolates = True  # as in a process of its own
    return opened


@pytest.fixture(scope="module")
def client(judge: GenerativeJudge) -> Iterator[httpx.Client]:
    with in_process(create_app(judge)) as client:
        yield client


def pair(question: str, **options: Any) -> dict[str, Any]:
    return {"question": question, "responses": ["it is red", "it is blue"], **options}


def test_a_prompt_beyond_the_context(client: httpx.Client, judge: GenerativeJudge) -> None:
    """Refused at the door, with both numbers, wherever it stands; nothing has asked the engine."""
    long = "word " * 9_000
    chat = [{"role": "user", "content": long}]
    for path, body in {
        "/v1/judge": pair(long),
        "/v1/rewards": {"question": "Which?", "responses": ["a", long, "b"]},
        "/rerank": {"query": "Which?", "documents": ["a", long]},
        "/slime": {"prompt": "Which?", "response": long},
        "/v1/chat/completions": {"messages": chat, "max_tokens": 2},
    }.items():
        answer = client.post(path, json=body)
        assert (answer.status_code, f"at most {CONTEXT:,}" in answer.text) == (400, True), (path, answer.text)
        assert "context_length_exceeded" in answer.text
    parts = client.post("/v1/judge/batch", json=[pair(long), pair("Which?")]).json()
    assert (parts[0]["status"], len(parts[1]["votes"])) == ("context_length_exceeded", 2)


def test_neighbours_of_what_cannot_be_read(judge: GenerativeJudge) -> None:
    """A prompt that the processor finds too long, and one that it fails at, have failed completions, each with its reason."""

    def said(text: str, image: bytes | None = None) -> tuple[Message, ...]:
        parts = (Part(image=image),) if image else ()
        return (Message("user", (*parts, Part(text=text))),)

    prompts = [said("a"), said("word " * 9_000), said("b", b"no image"), said("c")]
    drawn = judge.sampler.sample(prompts, SamplingParams(2, 0.0, max_tokens=3))
    assert [len(row) for row in drawn] == [2] * 4
    assert [row[0].finish is FinishReason.ERROR for row in drawn] == [False, True, True, False]
    assert all(row[0].error.startswith(UNREADABLE) for row in drawn[1:3])
    assert f"reads at most {CONTEXT:,}" in drawn[1][0].error
    alone = judge.sampler.sample([prompts[0], prompts[3]], SamplingParams(2, 0.0, max_tokens=3))
    assert [row[0].text for row in alone] == [drawn[0][0].text, drawn[3][0].text]


def test_what_cannot_be_read_is_no_fault_of_the_engine(judge: GenerativeJudge) -> None:
    """Words that pass the door and are too many for the model: that request's 422, while those beside it are answered."""
    unknowing = create_app(judge)
    unknowing.state.service.queue.versions.newest.context = None  # as of a judge whose tokenizer is not here
    with in_process(unknowing) as client, ThreadPoolExecutor(8) as pool:
        texts = [f"Which {n}?" for n in range(6)]
        texts.insert(3, "word " * 9_000)
        answers = list(pool.map(lambda text: client.post("/v1/judge", json=pair(text)), texts))
        ready = client.get("/ready").status_code
    assert [answer.status_code for answer in answers] == [200, 200, 200, 422, 200, 200, 200]
    assert "tokens" in answers[3].text
    assert ready == 200


@pytest.mark.parametrize("options", [{"temperature": 1e-40}, {"top_p": 1e-300}, {"temperature": 0.001}])
def test_a_chat_with_no_probabilities(client: httpx.Client, options: dict[str, float]) -> None:
    """Numbers that underflow in the model's precision are refused, and the next chat is answered."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Which?"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=body | options).status_code == 422
    assert client.get("/ready").status_code == 200
    assert client.post("/v1/chat/completions", json=body | {"temperature": 0.01, "top_p": 0.001}).status_code == 200


def test_counting_takes_no_longer_than_the_context(tiny_checkpoint: Path) -> None:
    """Of a text a thousand times too long only the beginning is counted; a short one is not counted at all."""
    context = ContextLength(tiny_checkpoint, 100)
    assert not context.may_exceed(["word"] * 10)
    with pytest.raises(ContextLengthError, match="at most 100"):
        context.check(["word " * 1_000_000])
    context.check(["word"] * 10)


class SlowAndBroken:
    """An engine that takes a while to fail."""

    name, sees = "engine", True

    def __init__(self) -> None:
        self.num_calls = 0

    def check(self) -> None:
        pass

    def compare_many(self, pairs: Sequence[PreferencePair], **options: Any) -> list[Judgment]:
        self.num_calls += 1
        time.sleep(0.1)
        raise RuntimeError("out of memory")


@pytest.mark.slow
def test_a_batch_that_nobody_waits_for_is_tried_no_further() -> None:
    """After the engine's time is up the call that runs is the last one of its batch."""
    engine = SlowAndBroken()

    async def main() -> None:
        queue = JudgeQueue(engine, QueueOptions(engine_timeout_s=0.25, recheck_s=60))  # type: ignore[arg-type]
        queue.start()
        pairs = [PreferencePair("p", f"Which {n}?", ("a", "b"), None) for n in range(16)]
        results = await asyncio.gather(
            *(queue.submit(JudgeJob(pair, BOTH_ORDERS, 1, 0)) for pair in pairs), return_exceptions=True
        )
        assert {type(result) for result in results} == {EngineFailedError}
        num_calls = engine.num_calls
        await asyncio.sleep(1)
        assert engine.num_calls <= num_calls + 1
        queue.stop()

    asyncio.run(main())


def test_counts_are_kept_for_each_tenant_and_not_the_texts(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look by the same key is no second count, one by another key is; a thousand long texts leave little behind."""
    context = ContextLength(tiny_checkpoint, 100)
    counted, tokenizer = list[str](), context._tokenizer

    class Counted:
        def encode_batch(self, texts: list[str], **options: Any) -> Any:
            counted.extend(texts)
            return tokenizer.encode_batch([text[:10] for text in texts], **options)

    monkeypatch.setattr(context, "_tokenizer", Counted())

    def check(tenant: str) -> None:
        REQUEST.set(RequestRecord(tenant=tenant))
        context.check(["word"])

    for tenant in ("", "a", "a", "b"):
        contextvars.copy_context().run(check, tenant)
    assert counted == ["word"] * 3
    counted.clear()
    tracemalloc.start()
    for n in range(2000):
        context.check([f"{n} {'x' * 10_000}"])
        counted.clear()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000


def yarn_copy(checkpoint: Path, folder: Path) -> Path:
    """Return a copy that reads four times as far, as Qwen documents it."""
    scaled = shutil.copytree(checkpoint, folder / "yarn")
    config = json.loads((scaled / "config.json").read_text())
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}
    config.get("text_config", config)["rope_scaling"] = scaling
    (scaled / "config.json").write_text(json.dumps(config))
    return scaled


def test_the_context_with_rope_scaling(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """At the door, and by the config that the sampler and a training run read."""
    scaled = yarn_copy(tiny_checkpoint, tmp_path)
    words = load_template("plain")

    def context(engine_args: str = "", checkpoint: Path = scaled) -> ContextLength | None:
        return ContextLength.of(
            GenerativeJudge(ScriptedSampler(lambda *_: ""), words, judge=f"vllm:{checkpoint}", engine_args=engine_args)
        )

    found, plain = context(), context("--dtype bfloat16", tiny_checkpoint)
    assert found is not None
    assert plain is not None
    assert (found.max_tokens, plain.max_tokens, context_of(str(scaled))) == (4 * CONTEXT, CONTEXT, 4 * CONTEXT)
    for options in ("--max-model-len 100000", "--max_model_len=100000", "--hf-overrides '{}'", "--hf-overrides.rope_scaling x"):
        assert context(options) is None
