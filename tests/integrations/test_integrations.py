"""Adapters: TRL's own trainer, with images, against a running server; the others by their documented calls."""

from __future__ import annotations

import asyncio
import atexit
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image

from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.integrations import easyr1, openrlhf, slime, verl
from rewardlab.integrations.client import RewardClient
from rewardlab.integrations.ms_swift import JudgeORM
from rewardlab.integrations.trl import judge_reward
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.types import Choice, Message
from rewardlab.verdicts.parse import format_verdict
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION, handler
from tests.support.servers import running
from tests.support.serving import judge_of

UNTIL_IT_WOULD_BE_BACK = 4.9  # a failing judge says: in 5 s


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not wait for a failing judge."""
    monkeypatch.setenv("REWARDLAB_DEADLINE_S", str(UNTIL_IT_WOULD_BE_BACK))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    judge = judge_of(handler)
    with running(create_app(judge, ServerOptions(rules=GroupRules(group_size=3), limits=Limits(group_timeout=0.5)))) as address:
        yield address


def test_trl_calls(url: str) -> None:
    """Two groups in one call, one of them about an image; one alone, and one that cannot be judged, are None."""
    reward = judge_reward(url, deadline_s=UNTIL_IT_WOULD_BE_BACK)
    see = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Do you see it?"}]}]
    prompts = [see] * 3 + [[{"role": "user", "content": QUESTION}]] * 2 + [[{"role": "user", "content": "down"}]] * 2
    completions = [[{"role": "assistant", "content": a}] for a in [*ANSWERS, *ANSWERS[:2], *ANSWERS[:2]]]
    photo = Image.new("RGB", (28, 28), "red")
    images = [[photo]] * 3 + [None] * 4
    told = asyncio.run(reward(prompts, completions, images=images, completion_ids=[], trainer_state=None))
    assert told == [-1, 1, 0, -1, 1, None, None]
    with pytest.raises(DataError, match="1 image parts hold no image"):
        asyncio.run(reward(prompts[:3], completions[:3]))
    assert asyncio.run(reward(prompts[:1], completions[:1], image=[photo])) == [None]
    inside = [{"role": "user", "content": [{"type": "image", "image": photo}, {"type": "text", "text": "Do you see it?"}]}]
    assert asyncio.run(reward([inside] * 3, completions[:3])) == [-1, 1, 0]
    texts = asyncio.run(reward([QUESTION] * 3, ANSWERS))
    assert texts == [-1, 1, 0]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")  # TRL's own
def test_trl_trains_on_it(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Two steps of GRPOTrainer on a real, tiny Qwen2.5-VL: every prompt is judged with its own image, rewards arrive."""
    from datasets import Dataset, Features, List, Value
    from datasets import Image as ImageFeature
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import shutdown_event_loop_in_daemon

    seen: set[bytes] = set()

    def longer(prompt: tuple[Message, ...], draw: int) -> str:
        seen.update(prompt[0].images)
        first, second = (block for block in prompt[0].text.split("\nResponse ")[1:])
        return format_verdict(Choice.FIRST if len(first) >= len(second) else Choice.SECOND, "r")

    pairs = demo_pairs[0][:2]
    rows = {
        "prompt": [[{"role": "user", "content": p.question}] for p in pairs],
        "image": [{"bytes": p.images[0], "path": None} for p in pairs],
    }
    features = Features({"prompt": List({"role": Value("string"), "content": Value("string")}), "image": ImageFeature()})
    dataset = Dataset.from_dict(rows, features=features)
    judge = judge_of(longer)
    with running(create_app(judge)) as url:
        config = GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=6,
            report_to="none",
            use_cpu=True,
            bf16=False,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            AutoModelForImageTextToText.from_pretrained(tiny_checkpoint),
            reward_funcs=judge_reward(url),
            args=config,
            train_dataset=dataset,
            processing_class=AutoProcessor.from_pretrained(tiny_checkpoint),
        )
        trainer.train()
        atexit.unregister(shutdown_event_loop_in_daemon)  # TRL leaves its loop open to the end of the process
        shutdown_event_loop_in_daemon(trainer.async_loop_thread, trainer.async_loop)
        trainer.async_loop.close()
        told = httpx.get(f"{url}/metrics").text
    logs = [row for row in trainer.state.log_history if "rewards/judge/mean" in row]
    assert len(logs) == 2
    assert len(seen) == 2
    asked = next(line for line in told.splitlines() if line.startswith("rewardlab_asked_total"))
    assert float(asked.split()[1]) == 2 * 6  # two steps of one group of four, everyone against everyone


def test_openrlhf_file(url: str, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors as its experience maker takes them; a failing judge raises, which leaves the sample without a reward there."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    told = openrlhf.reward_func([PROMPT + a for a in ANSWERS], [PROMPT] * 3, ["red"] * 3)
    assert told["rewards"].tolist() == told["extra_logs"]["judge_reward"].tolist() == [-1, 1, 0]
    assert told["scores"].tolist() == [0, 1, 0.5]
    with pytest.raises(EndpointError, match="no reward for 2 queries"):
        openrlhf.reward_func(["down?" + a for a in ANSWERS[:2]], ["down?"] * 2, [None] * 2)


@pytest.mark.slow
def test_verl(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sample by sample, with an image from disk; without a question nothing can be judged."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    (tmp_path / "a.png").write_bytes(png())
    info = {"question": "Do you see it?", "images": [str(tmp_path / "a.png")]}

    async def main() -> list[dict[str, Any]]:
        return await asyncio.gather(*(verl.compute_score("demo", answer, "red", info) for answer in ANSWERS))

    assert asyncio.run(main()) == [{"score": value} for value in (-1.0, 1.0, 0.0)]
    with pytest.raises(DataError, match="'question'"):
        asyncio.run(verl.compute_score("demo", "x", "red", {}))
    with pytest.raises(EndpointError, match="no reward"):
        asyncio.run(verl.compute_score("demo", "I say 1.", "red", {"question": "Alone?"}))
    assert asyncio.run(verl.compute_score("demo", "I say 1.", "red", {"question": "Alone?", "anchor": "I say 2."})) == {
        "score": -1.0,
    }


def test_easyr1(url: str, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of two groups; no JSON in the ground truth is told, and a failure is no zero."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    truth = [json.dumps({"question": f"{QUESTION} {n}"}) for n in range(2)]
    batch = [{"response": answer, "response_length": 3, "ground_truth": one} for one in truth for answer in ANSWERS]
    assert easyr1.compute_score(batch) == [{"overall": value} for value in (-1, 1, 0)] * 2
    with pytest.raises(DataError, match="ground_truth"):
        easyr1.compute_score([{"response": "a", "ground_truth": "red"}])
    down = [{"response": a, "ground_truth": json.dumps({"question": "down"})} for a in ANSWERS]
    with pytest.raises(EndpointError, match="3 of 3"):
        easyr1.compute_score(down)


def test_ms_swift(url: str, impatient: None) -> None:
    """A row is read by its columns; an error where nothing could be judged, counted."""

    class Judge(JudgeORM):
        pass

    Judge.address = url
    orm = Judge()
    messages = [[{"role": "user", "content": "Do you see it?"}, {"role": "assistant", "content": a}] for a in ANSWERS]
    images = [[{"bytes": png(), "path": None}]] * 3
    assert orm(ANSWERS, messages=messages, images=images, solution=["red"] * 3) == [-1, 1, 0]
    with pytest.raises(EndpointError, match="no reward for 3 of 3"):
        orm(ANSWERS, messages=[[{"role": "user", "content": "down"}]] * 3)
    assert orm.num_failed == 3


def test_ms_swift_asks_about_the_last_turn(url: str) -> None:
    """Earlier answers are part of the question; its image's mark is not."""

    class Judge(JudgeORM):
        address = url

    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    asked = [*before, {"role": "user", "content": "<image>Do you see it?"}]
    messages = [[*asked, {"role": "assistant", "content": a}] for a in ANSWERS]
    assert Judge()(ANSWERS, messages=messages, images=[[{"bytes": png(), "path": None}]] * 3) == [-1, 1, 0]


def test_slime(url: str, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with its image, prompts with chat marks; slime knows no sample without a reward."""
    monkeypatch.setenv("REWARDLAB_URL", url)

    def group(question: str) -> list[Any]:
        prompt = f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n"
        seen = {"images": [Image.new("RGB", (28, 28), "red")]}
        return [
            SimpleNamespace(prompt=prompt, response=f"{answer}<|im_end|>", metadata=None, multimodal_inputs=seen)
            for answer in ANSWERS
        ]

    assert asyncio.run(slime.judge_group(None, [*group("Do you see it?"), *group("See?")])) == [-1, 1, 0] * 2
    with pytest.raises(EndpointError, match="3 of 3"):
        asyncio.run(slime.judge_group(None, group("down")))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:cohere")
def test_cohere(url: str) -> None:
    """Its package's own rerank, old and new; one document alone is the first, compared with nothing."""
    import cohere

    for version in (cohere.ClientV2, cohere.Client):
        with httpx.Client() as connections:
            client = version(base_url=url, api_key="none", httpx_client=connections)
            told = client.rerank(model="m", query=QUESTION, documents=list(ANSWERS), top_n=2)
            assert [(one.index, one.relevance_score) for one in told.results] == [(1, 1.0), (2, 0.5)]
            alone = client.rerank(model="m", query=QUESTION, documents=["one alone"])
            assert [(one.index, one.relevance_score) for one in alone.results] == [(0, 0.5)]


def test_a_client_without_a_server(url: str) -> None:
    """Down: no reward, none made up. The wrong key or door: said, for no reward would ever come."""
    client = RewardClient("http://127.0.0.1:9", deadline_s=0.1)
    assert asyncio.run(client.rewards(QUESTION, ANSWERS)) == [None] * 3
    assert client.num_failed == 3
    with pytest.raises(EndpointError, match="404"):
        asyncio.run(RewardClient(f"{url}/nowhere").rewards(QUESTION, ANSWERS))


@pytest.mark.parametrize("options", [{"vote": 3}, {"votes": 0}, {"strategy": "best"}])
def test_an_option_that_is_refused_ends_the_run(url: str, options: dict[str, Any]) -> None:
    """A misspelt option would leave every sample without a reward, and a trainer would go on to the end."""
    with pytest.raises(EndpointError, match=next(iter(options))):
        asyncio.run(RewardClient(url, **options).rewards("q", ["a", "b"]))


def test_an_address_without_a_scheme() -> None:
    with pytest.raises(ConfigError, match="http://localhost:8000"):
        RewardClient("localhost:8000")
