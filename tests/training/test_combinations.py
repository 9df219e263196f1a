"""Parts of a method that go together: verified judgments, or windows, with refilled groups, a KL term, importance weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.config import RLConfig
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG
from rewardlab.rewards.rollout import Scored
from rewardlab.rl.self_verification import at_turn_ends
from rewardlab.training.policy_gradient import trainer as trainer_module
from rewardlab.training.policy_gradient.algorithm import _token_rewards
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, rl_rows, train_rl
from tests.support.configs import WITH_CRITIC, short_rl_config
from tests.support.rewards import TokenReward

DIALOGUES: dict[str, Any] = WITH_CRITIC | {"self_verify": True, "max_completion_length": 12}
WINDOWS: dict[str, Any] = WITH_CRITIC | {"window": 4, "batch_size": 8}  # begun in the first step, finished in the second


def config_for(checkpoint: Path, **changes: Any) -> RLConfig:
    return short_rl_config(checkpoint, **changes)


def parity_reward() -> TokenReward:
    """Pays by the first token, so that groups are mixed."""
    return TokenReward(lambda ids, n: float(sum(ids) % 5), correct=lambda ids, n: float(ids[0] % 2))


@pytest.fixture
def dialogues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the decoder end its turns, verify every other judgment as wrong, and give its own log-probs of these tokens."""
    dice = torch.Generator().manual_seed(0)

    def scripted(self: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
        tokenizer, turns = self._tokenizer, []
        for n, ids in enumerate(prompt_ids):
            text = tokenizer.decode(ids)
            if VERIFY in text and REVISE not in text:
                words = tokenizer((WRONG, CORRECT)[n % 2], add_special_tokens=False)["input_ids"]
            else:
                words = torch.randint(5, 200, (3 + n % 3,), generator=dice).tolist()
            turns.append([*words, self.eos_token_ids[0]])
        return turns, [[-2.0] * len(turn) for turn in turns]

    monkeypatch.setattr(PolicyTrainer, "_sample_decoder", scripted)


def lines_of(run: Path) -> list[dict[str, float]]:
    """Return the logs of the optimizer steps, every number of which is finite."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert all(math.isfinite(float(value)) for line in steps for value in line.values())
    assert [line["step"] for line in steps] == [1, 2]
    assert steps[-1]["grad_norm"] > 0
    return steps


@pytest.mark.usefixtures("dialogues")
def test_verified_judgments(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """With refilled groups, a KL term in the reward, and importance weights."""
    changes = {
        "dynamic_sampling": "refill",
        "group_size": 2,
        "kl_coef": 0.1,
        "importance": {"mode": "token_truncate", "cap": 2.0},
    }
    train_rl(hard, config_for(tiny_checkpoint, **DIALOGUES, **changes), tmp_path / "run", reward=parity_reward())
    first = lines_of(tmp_path / "run")[0]
    assert {"sampling/mixed_frac", "kl/sampled_k1", "importance/mean", "verifying/advantage/max_abs"} <= set(first)
    assert first["verify/revised_frac"] > 0


def test_windows(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Rollouts of which older policies sampled the beginning: only what this one sampled is corrected, and trained on."""
    changes = {"importance": {"mode": "token_truncate", "cap": 2.0}, "kl": "k2_loss", "kl_coef": 0.1}
    train_rl(hard, config_for(tiny_checkpoint, **WINDOWS, **changes), tmp_path / "run", reward=parity_reward())
    steps = lines_of(tmp_path / "run")
    assert [line["truncated/unfinished_frac"] for line in steps] == [1.0, 0.0]
    assert [line["truncated/passes"] for line in steps] == [0.25, 0.25]  # the second window of eight of 32 rows begins none
    assert all("kl/loss" in line for line in steps)
    assert [line["importance/mean"] for line in steps] == pytest.approx([1.0, 1.0], abs=1e-3)  # by the trainer's own model


def test_a_finished_rollout_that_nothing_scores_is_not_trained_on(
    hard: list[Any], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows too, where an unfinished one, which has no reward yet either, is trained on."""
    batches: list[Any] = []
    compute = trainer_module.compute_advantages

    def keep(batch: Any, *args: Any, **more: Any) -> Any:
        batches.append(batch)
        return compute(batch, *args, **more)

    def unscored(rollouts: Any, step: int) -> Scored:
        return Scored([None] * len(rollouts), [0.0] * len(rollouts), [True] * len(rollouts))

    monkeypatch.setattr(trainer_module, "compute_advantages", keep)
    train_rl(hard, config_for(tiny_checkpoint, **WINDOWS), tmp_path / "run", reward=unscored)
    trained = [
        (finished, mask.any()) for batch in batches for finished, mask in zip(batch.finished_N, batch.loss_mask_NT, strict=True)
    ]
    assert {bool(finished) for finished, _ in trained} == {True, False}
    assert all(bool(is_trained) != bool(finished) for finished, is_trained in trained)


@pytest.fixture
def rewards_of(
    hard: list[Any], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, torch.Tensor, float]]:
    """Return (batch, token rewards [N, T], mean KL that is logged) of one batch of dialogues under a drifted reference."""

    def make(**changes: Any) -> tuple[Any, torch.Tensor, float]:
        config = config_for(tiny_checkpoint, **DIALOGUES, **changes)
        model, processor = load_model(str(tiny_checkpoint), device="cpu")
        rows, template = rl_rows(hard, load_template("plain"), both_orders=True), load_template("plain")
        trainer = build_trainer(rows, config, model, processor, template, tmp_path, reward=parity_reward())
        with torch.no_grad():
            for number, weight in enumerate(trainer.ref_model.parameters()):
                weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
        kept: list[Any] = []
        compute = trainer_module.compute_advantages

        def keep(batch: Any, rewards: Any, method: Any, **more: Any) -> Any:
            zeros = torch.zeros(len(batch.completion_mask_NT))
            kept.extend([batch, _token_rewards(batch, zeros, rewards, batch.completion_mask_NT, method)])
            return compute(batch, rewards, method, **more)

        monkeypatch.setattr(trainer_module, "compute_advantages", keep)
        trainer.model.train()
        trainer._generate_and_score_completions([rows[n] for n in range(8)])
        return kept[0], kept[1], trainer._accumulators["train"].flush(list)["kl/sampled_k1"]

    return make


@pytest.mark.usefixtures("dialogues")
@pytest.mark.parametrize("batch_size", [4, 8])
def test_the_kl_is_taken_off_what_the_policy_said(
    rewards_of: Callable[..., tuple[Any, torch.Tensor, float]], batch_size: int
) -> None:
    """Token by token: a turn's reward at its end, less the coefficient times the KL of each token of the policy's, and
    nothing for a word of the user's. Where no update lies between sampling and training (8), by the sampler's log-probs."""
    batch, rewards_NT, mean_kl = rewards_of(kl_coef=0.3, batch_size=batch_size)
    assert (batch.old_logprobs_NT is None) == (batch_size == 8)
    old_NT = torch.full_like(batch.ref_logprobs_NT, -2.0) if batch_size == 8 else batch.old_logprobs_NT
    expected_NT, kls = at_turn_ends(batch.turn_rewards_NK, batch.turns_NT), []
    for n, turns in enumerate(batch.turns_NT.tolist()):
        for t, turn in enumerate(turns):
            if turn:
                kls.append((old_NT[n, t] - batch.ref_logprobs_NT[n, t]).item())
                expected_NT[n, t] -= 0.3 * kls[-1]
    torch.testing.assert_close(rewards_NT, expected_NT, atol=1e-6, rtol=1e-5)
    assert sorted(batch.turns_NT.max(1).values.tolist()) == [2, 2, 2, 2, 3, 3, 3, 3]
    assert max(map(abs, kls)) > 1e-2
    assert batch.turn_rewards_NK.abs().max() > 0
    assert mean_kl == pytest.approx(sum(kls) / len(kls), rel=1e-4)
