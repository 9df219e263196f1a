"""A checkpoint whose chat template opens ``<think>``: trained, rewarded and benchmarked as one that writes the tag itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rewardlab
from rewardlab.config import ConsistencyConfig, SFTConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError
from rewardlab.models.loading import load_processor
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler, special_tokens, thinking_opening
from rewardlab.training.rl import train_rl
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import sft_dialogues, train_sft
from rewardlab.types import PreferencePair, choice_of
from rewardlab.verdicts.parse import follows_format, format_verdict
from rewardlab.verdicts.places import reasoning_of
from tests.support.configs import short_rl_config

PLAIN = load_template("plain")
STEPS = {"max_steps": 60, "batch_size": 8, "micro_batch_size": 8, "gradient_checkpointing": False, "save_steps": 1000}


def opens_thinking(checkpoint: Path, out: Path) -> Path:
    """The checkpoint with a generation prompt that ends in ``<think>`` and a line end, as Qwen3-VL-Thinking's does."""
    folder = Path(shutil.copytree(checkpoint, out))
    changed = 0
    for file in folder.iterdir():
        if file.suffix in (".jinja", ".json"):
            text = file.read_text()
            ending = "<|im_start|>assistant\\n' -}}"
            changed += ending in text
            file.write_text(text.replace(ending, ending.replace("\\n'", "\\n<think>\\n'")))
    assert changed
    return folder


@pytest.fixture(scope="module")
def judged(demo_pairs: Any) -> list[PreferencePair]:
    return [
        replace(pair, attempts="2", judgment=format_verdict(choice_of((pair.preferred or 0) ^ (n % 2), pair.order), "x y"))
        for n, pair in enumerate(demo_pairs[0][:80])
    ]


@pytest.fixture(scope="module")
def judge(tiny_checkpoint: Path, judged: list[PreferencePair], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge that has learnt to reason and to say either verdict after an opened thinking."""
    out = tmp_path_factory.mktemp("thinking")
    base = opens_thinking(tiny_checkpoint, out / "base")
    assert thinking_opening(load_processor(str(base))) == "<think>\n"
    return train_sft(judged, SFTConfig(model=str(base), template="plain", learning_rate=1e-2, **STEPS), out / "sft")


@pytest.mark.nightly
def test_training_goes_on_where_the_prompt_ends(judge: Path, judged: list[PreferencePair]) -> None:
    """The text that is trained on is the rendered prompt and what is sampled after it, character by character."""
    processor = load_processor(str(judge))
    opening = thinking_opening(processor)
    reader = PromptReader(judged, PLAIN, special_tokens(processor.tokenizer), opening)
    row = dialogue_dataset(reader, sft_dialogues(judged, PLAIN))[0]
    prompt = processor.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
    whole = processor.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    assert prompt.endswith("assistant\n<think>\n")
    assert whole.startswith(prompt)
    assert whole.removeprefix(prompt).startswith("x y</think><answer>")


def test_a_sample_has_its_thinking(judge: Path, judged: list[PreferencePair]) -> None:
    sampler = HFSampler.load(judge)
    prompts = [build_messages(pair, order=pair.order, template=PLAIN) for pair in judged[:4]]
    rows = sampler.sample(prompts, SamplingParams(1, 0.0, 1.0, 32, 0))
    texts = [row[0].text for row in rows]
    assert all(text.startswith("<think>\n") for text in texts)
    assert all(follows_format(text, opened=False) for text in texts), texts
    assert {reasoning_of(text) for text in texts} == {"x y"}
    ids = rows[0][0].token_ids
    assert not sampler.processor.tokenizer.decode(list(ids)).startswith("<think>")


def test_format_is_paid_and_the_report_reads_it(judge: Path, judged: list[PreferencePair], tmp_path: Path) -> None:
    """RL pays the format to rollouts; the benchmark of the trained judge reads every verdict."""
    config = short_rl_config(judge, max_steps=2, consistency=ConsistencyConfig(weight=0.0))
    final = train_rl(judged, config, tmp_path / "rl")
    state = json.loads(next((tmp_path / "rl").rglob("trainer_state.json")).read_text())
    history = state["log_history"]
    paid = [row["reward/format"] for row in history if "reward/format" in row]
    assert paid
    assert min(paid) > 0.5
    write_parquet(judged[:8], tmp_path / "test.parquet")
    report = rewardlab.benchmark(
        "pairs", judge=f"hf:{final}", data=tmp_path / "test.parquet", out=tmp_path / "bench", temperature=0.0, max_tokens=32
    )
    assert report.scores.invalid_rate < 0.5


def test_a_verdict_alone_is_refused(judge: Path, judged: list[PreferencePair], tmp_path: Path) -> None:
    """Its checkpoint would think before the verdict that was trained right after the prompt."""
    config = SFTConfig(model=str(judge), template="verdict", **STEPS)
    with pytest.raises(ConfigError, match="its chat template opens <think>"):
        train_sft(judged, config, tmp_path / "out")
