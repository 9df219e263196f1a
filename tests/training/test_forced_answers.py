"""Rollouts that are cut while they think must answer: what is inserted, what is trained on, and what is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.config import RLConfig
from rewardlab.demo.pairs import make_pairs
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.loading import load_processor
from rewardlab.rewards.rollout import Rollout, Scored, Trajectory
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.policy_gradient.rollouts.sampling import Samples, Sampling
from rewardlab.training.policy_gradient.rollouts.strategies import ForcedAnswerRollouts
from rewardlab.training.rl import train_rl
from rewardlab.verdicts.formats import answer_opening
from tests.support.configs import WITH_CRITIC, short_rl_config

CLOSING = "</think><answer>"


def test_what_is_inserted() -> None:
    openings = {
        name: answer_opening(name) for name in ("think_answer", "answer_sentence", "box_tokens", "double_brackets", "bare")
    }
    assert openings == {
        "think_answer": CLOSING,
        "answer_sentence": "</think><answer>Answer ",
        "box_tokens": "</think><|begin_of_box|>",
        "double_brackets": "",
        "bare": "",
    }


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Path) -> tuple[list[Trajectory], list[tuple[list[list[int]], list[int], int | None]], dict[str, Any]]:
    """Trajectories of four completions of at most 6 tokens: ended, cut in the thinking (twice), cut in the answer."""
    tokenizer = load_processor(str(tiny_checkpoint)).tokenizer
    end, pad = tokenizer.eos_token_id, tokenizer("a", add_special_tokens=False)["input_ids"][0]

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    thinking = ids("<think>")
    texts = [[*thinking, pad, *ids(CLOSING), end], [*thinking, pad, pad], [*thinking, pad], [*thinking, *ids(CLOSING), pad]]
    calls: list[tuple[list[list[int]], list[int], int | None]] = []

    def sample(prompt_ids: list[list[int]], images: Any, fields: Any, rows: Any) -> Samples:
        calls.append((prompt_ids, list(rows), rollouts.max_new_tokens))
        tokens = texts if len(calls) == 1 else [[pad, end], [pad, pad, pad]]
        return tokens, [[-0.5] * len(part) for part in tokens]

    rollouts = ForcedAnswerRollouts(load_processor(str(tiny_checkpoint)), CLOSING, 3)
    sampling = Sampling(sample, lambda flag: flag, frozenset({end}), 6)
    trajectories = rollouts.complete([[7], [8], [9], [10]], None, {}, sampling)
    return trajectories, calls, {"texts": texts, "closing": ids(CLOSING), "pad": pad, "end": end, "rollouts": rollouts}


def test_only_what_is_cut_while_it_thinks_continues(made: Any) -> None:
    """After its own tokens and the inserted ones, for at most the tokens of an answer; the others stay."""
    trajectories, calls, facts = made
    texts, closing, pad, end = facts["texts"], facts["closing"], facts["pad"], facts["end"]
    assert [rows for _, rows, _ in calls] == [[0, 1, 2, 3], [1, 2]]
    assert [most for *_, most in calls] == [None, 3]
    assert calls[1][0] == [[8, *texts[1], *closing], [9, *texts[2], *closing]]
    assert [part.tokens for part in trajectories] == [
        texts[0],
        [*texts[1], *closing, pad, end],
        [*texts[2], *closing, pad, pad, pad],
        texts[3],
    ]
    first = len(texts[1])
    assert trajectories[1].forced == ((first, first + len(closing)),)
    assert trajectories[1].logprobs == [-0.5] * first + [0.0] * len(closing) + [-0.5] * 2
    assert trajectories[0].forced == trajectories[3].forced == ()
    assert facts["rollouts"].max_new_tokens is None


def test_inserted_tokens_are_not_trained_on(made: Any) -> None:
    """They remain in what the model reads."""
    trajectories = made[0]
    width = max(len(part.tokens) for part in trajectories)
    mask_NT = torch.tensor([[1] * len(part.tokens) + [0] * (width - len(part.tokens)) for part in trajectories])
    prompt = torch.ones(4, 1, dtype=torch.long)
    batch = RolloutBatch(prompt, prompt, torch.zeros_like(mask_NT), mask_NT, mask_NT, {})
    rollouts = [Rollout({}, [7], part, "") for part in trajectories]
    after = batch.with_rollouts(rollouts)
    expected_NT = mask_NT.clone()
    for row in (1, 2):
        begin = len(made[2]["texts"][row])
        expected_NT[row, begin : begin + len(made[2]["closing"])] = 0
    assert torch.equal(after.loss_mask_NT, expected_NT)
    assert torch.equal(after.completion_mask_NT, mask_NT)


def test_metrics(made: Any) -> None:
    trajectories, _, facts = made
    rollouts = [Rollout({}, [7], part, "") for part in trajectories]
    scored = Scored([1.0, 0.5, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [True, True, False, False])
    metrics = facts["rollouts"].collect(rollouts, lambda some: scored).metrics
    assert {name: metric.value for name, metric in metrics.items()} == {
        "forced/frac": 0.5,
        "forced/verdict_frac": 0.5,
        "forced/accuracy": 0.5,
    }


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (WITH_CRITIC, "advantage gae"),
        ({"engine": {}}, "engine"),
        ({"hot_token": {}}, "hot_token"),
        ({"process_reward": "prm"}, "process_reward"),
    ],
)
def test_what_it_does_not_go_with(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"forced_answer_length .* {name} cannot"):
        RLConfig(forced_answer_length=4, **changes)


def test_a_format_without_thinking(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = short_rl_config(tiny_checkpoint, forced_answer_length=4, template="verdict")
    with pytest.raises(ConfigError, match="judgments in format bare have no </think>"):
        train_rl([replace(demo_pairs[0][0], attempts="2")], config, tmp_path / "rl")


def test_prompts_leave_room_for_an_answer(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []

    def stop(*args: Any, room: int, **kwargs: Any) -> Any:
        rooms.append(room)
        raise DataError("seen")

    monkeypatch.setattr("rewardlab.training.rl.drop_too_long", stop)
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:8]]
    with pytest.raises(DataError, match="seen"):
        train_rl(pairs, short_rl_config(tiny_checkpoint, forced_answer_length=4), tmp_path / "rl")
    closing = load_processor(str(tiny_checkpoint)).tokenizer(CLOSING, add_special_tokens=False)["input_ids"]
    assert rooms == [8 + len(closing) + 4]


def test_a_run(tmp_path: Path) -> None:
    """Of the packaged judge in groups, cut after 24 tokens, before any verdict: some rollouts have one then. The trainer's
    log-probs of all trained tokens are the sampler's: both read the inserted tokens."""
    pairs = [replace(pair, attempts="2") for pair in make_pairs(8, seed=1, held_out=False)[0]]
    changes = {
        "max_completion_length": 24,
        "advantage": "grpo",
        "group_size": 4,
        "importance": {},
        "rollout_batch_size": 32,
        "batch_size": 16,
        "micro_batch_size": 16,
    }
    train_rl(pairs, short_rl_config("rewardlab/demo/judge", forced_answer_length=4, **changes), tmp_path / "rl")
    forced = json.loads((tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()[0])
    assert forced["forced/frac"] == 1.0
    assert forced["verdict/ok"] == forced["forced/verdict_frac"] > 0.2
    assert forced["reward"] > 0
    assert 0 < forced["importance/gap"] < 3e-5
