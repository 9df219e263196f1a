"""The process reward model: what it is fitted to, saved, resumed; what it pays in RL, and where; nothing at weight 0."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import Trainer

from rewardlab.config import Method, PRMConfig, RLConfig
from rewardlab.errors import CheckpointError
from rewardlab.models.checkpoints import CARD
from rewardlab.models.loading import load_model, load_processor
from rewardlab.models.padding import PassLimits
from rewardlab.models.value_model import ValueModel, completion_values
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.steps import ProcessReward, step_tokens
from rewardlab.rl import reference
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy_gradient import trainer as trainer_module
from rewardlab.training.policy_gradient.algorithm import _token_rewards
from rewardlab.training.prm import NO_LABEL, PRMTrainer, StepCollator, prm_rows, train_prm
from rewardlab.training.rl import build_trainer, rl_rows, train_rl
from rewardlab.types import Order
from tests.support.configs import short_config, short_rl_config
from tests.support.rewards import TokenReward

config_for = partial(short_config, PRMConfig, template="plain", learning_rate=3e-3, micro_batch_size=4)

PLAIN = load_template("plain")


@pytest.fixture(scope="module")
def prm(tiny_checkpoint: Path, demo_pairs: Any, labelled: list[dict[str, Any]], tmp_path_factory: Any) -> Path:
    """A trained model's folder."""
    out = tmp_path_factory.mktemp("prm")
    return train_prm(demo_pairs[0], labelled, config_for(tiny_checkpoint, max_steps=20), out / "run")


@pytest.mark.parametrize("sharded", ["is_deepspeed_enabled", "is_fsdp_enabled"])
def test_shards_are_left_to_their_own_loader(sharded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What DeepSpeed or FSDP left is no folder of a value model."""
    given: list[Any] = []
    monkeypatch.setattr(Trainer, "_load_from_checkpoint", lambda self, folder, model=None: given.append((folder, model)))
    trainer = PRMTrainer.__new__(PRMTrainer)
    trainer.is_deepspeed_enabled = trainer.is_fsdp_enabled = False
    setattr(trainer, sharded, True)
    model = torch.nn.Linear(1, 1)
    trainer._load_from_checkpoint(str(tmp_path), model)
    assert given == [(str(tmp_path), model)]


def test_labels_stand_where_steps_end(tiny_checkpoint: Path, demo_pairs: Any, labelled: list[dict[str, Any]]) -> None:
    """On the token with the step's last character and nowhere else; the prompt in front is the judge's own."""
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    sampler, rows = HFSampler(model, processor), prm_rows(demo_pairs[0], labelled)
    batch = StepCollator(processor, PLAIN)(rows)
    for n, row in enumerate(rows):
        ids, labels = batch["input_ids"][n], batch["labels"][n]
        at = (labels != NO_LABEL).nonzero()[:, 0].tolist()
        assert labels[at].tolist() == row["step"]["labels"]
        prompt = build_messages(row["pair"], order=Order(row["step"]["order"]), template=PLAIN)
        plain = sampler.encode([prompt])["input_ids"][0]
        start = len(ids) - len(processor.tokenizer.encode(row["step"]["text"], add_special_tokens=False))
        assert torch.equal(ids[start - len(plain) : start], plain)
        for token, end in zip(at, row["step"]["ends"], strict=True):
            assert processor.tokenizer.decode(ids[start : token + 1]) == row["step"]["text"][:end]


def test_loss_is_the_squared_error(
    tiny_checkpoint: Path, demo_pairs: Any, labelled: list[dict[str, Any]], tmp_path: Path
) -> None:
    """An untrained one says 0 everywhere: error 1. Micro-batches, of unequally many steps, parts of them, and recomputed
    activations change nothing."""
    after = {}
    for micro in (8, 4, 1):
        sizes = {"micro_batch_size": micro, "micro_batch_tokens": 200 if micro == 4 else None}
        config = config_for(tiny_checkpoint, max_steps=2, gradient_checkpointing=micro == 4, **sizes)
        final = train_prm(demo_pairs[0], labelled, config, tmp_path / str(micro))
        first, second = (json.loads(line) for line in (tmp_path / str(micro) / "metrics.jsonl").read_text().splitlines()[:2])
        assert first["loss"] == pytest.approx(1.0, abs=1e-5)
        after[micro] = (second["loss"], ValueModel.from_pretrained(str(final)).head.weight)
    for micro in (4, 1):
        assert after[micro][0] == pytest.approx(after[8][0], abs=1e-4)
        torch.testing.assert_close(after[micro][1], after[8][1], atol=1e-5, rtol=1e-3)


@torch.no_grad()
def step_scores(model: ValueModel, collator: StepCollator, rows: Sequence[Any], *, size: int = 32) -> list[list[float]]:
    """The value at the end of each step of each row."""
    scores: list[list[float]] = []
    for start in range(0, len(rows), size):
        inputs, ends = collator.read(rows[start : start + size])
        scores += [values[tokens].tolist() for values, tokens in zip(model.eval()(**inputs), ends, strict=True)]
    return scores


def test_it_learns_and_sees(prm: Path, demo_pairs: Any, labelled: list[dict[str, Any]]) -> None:
    """The loss falls; scores of the folder read back depend on the image; judge and critic cannot be mixed up."""
    losses = [json.loads(line)["loss"] for line in (prm.parent / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert losses[-1] < 0.8 * losses[0]
    model, collator = ValueModel.from_pretrained(str(prm)), StepCollator(load_processor(str(prm)), PLAIN)
    rows = prm_rows(demo_pairs[0], labelled)
    scores = step_scores(model, collator, rows)
    assert [len(row) for row in scores] == [len(row["labels"]) for row in labelled]
    for one, in_threes in zip(scores, step_scores(model, collator, rows, size=3), strict=True):
        assert one == pytest.approx(in_threes, abs=1e-4)
    others = [{**row, "pair": rows[n - 1]["pair"]} for n, row in enumerate(rows)]
    assert step_scores(model, collator, others) != scores
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        HFSampler.load(prm)


def rl_config(checkpoint: Path, **changes: Any) -> RLConfig:
    return short_rl_config(checkpoint, **({"lr_scheduler": "constant", "max_completion_length": 24} | changes))


UNREAD = 2  # of this rollout no verdict could be read


class Written:
    """Has a trainer "sample" given texts, right and wrong by turns, and keeps its batch."""

    def __init__(self, rows: Any, config: RLConfig, folder: Path, texts: Sequence[str]) -> None:
        model, processor = load_model(config.model, device="cpu")
        reward = TokenReward(
            lambda ids, n: float(sum(ids) % 5), correct=lambda ids, n: float(n % 2 == 0), parsed=lambda n: n != UNREAD
        )
        self.trainer = build_trainer(rows, config, model, processor, PLAIN, folder, reward=reward)
        encode, end = processor.tokenizer.encode, self.trainer.eos_token_ids[0]
        ids = [[*encode(text, add_special_tokens=False), end] for text in texts]
        sampled = ids, [[0.0] * len(row) for row in ids]
        pytest.MonkeyPatch().setattr(self.trainer, "_sample_decoder", lambda *_: sampled)
        self.trainer.model.train()
        compute = trainer_module.compute_advantages

        def keep_rewards(batch: Any, rewards: Any, method: Any, **more: Any) -> Any:
            self.rewards_NT = _token_rewards(batch, torch.zeros(8), rewards, batch.loss_mask_NT, method)
            return compute(batch, rewards, method, **more)

        with mock.patch.object(trainer_module, "compute_advantages", keep_rewards):
            self.batch = self.trainer._generate_and_score_completions([rows[n] for n in range(8)])
        self.metrics = self.trainer._accumulators["train"].flush(list)


@pytest.fixture
def written(demo_pairs: Any, tiny_checkpoint: Path, labelled: list[dict[str, Any]], tmp_path: Path) -> Callable[..., Written]:
    """Eight rollouts: seven judgments and one without a closed reasoning."""
    rows = rl_rows(demo_pairs[0][:8], PLAIN, both_orders=False)
    texts = [row["text"] for row in labelled[:7]] + ["<think>Seen. Not seen."]
    return lambda **changes: Written(rows, rl_config(tiny_checkpoint, **changes), tmp_path, texts)


@pytest.mark.parametrize("advantage", ["reinforce_pp", "gae"])
def test_rewards_land_on_step_ends(
    written: Callable[..., Written], prm: Path, labelled: list[dict[str, Any]], advantage: str
) -> None:
    """Each step pays its clamped score by the number of steps and the weight of the outcome, worked out row by row; and the
    advantages are those of the reference step with these rewards."""
    run = written(process_reward=str(prm), advantage=advantage, outliers="keep")
    batch, tokenizer = run.batch, load_processor(str(prm)).tokenizer
    model = ValueModel.from_pretrained(str(prm)).eval()
    expected_NT = torch.zeros_like(run.rewards_NT)
    for n in (0, 1, 3, 4, 5, 6):
        row = {key: batch[key][n : n + 1] for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
        row |= {
            "mm_token_type_ids": batch["mm_token_type_ids"][n : n + 1],
            "image_rows": batch["image_rows"][n : n + 1],
        }
        scores = completion_values(model, row, limits=PassLimits(rows=1), autocast=nullcontext)[0, 1:]
        places = step_tokens(tokenizer, batch["completion_ids"][n, : batch["completion_mask"][n].sum()].tolist())
        assert [tokenizer.decode(batch["completion_ids"][n, : p + 1]) for p in places] == [
            labelled[n]["text"][:end] for end in labelled[n]["ends"]
        ]
        for place in places:
            expected_NT[n, place] = scores[place].clamp(-1, 1) / len(places) * (0.25 if n % 2 else 0.025)
    torch.testing.assert_close(run.rewards_NT, expected_NT, atol=1e-5, rtol=1e-4)
    assert expected_NT[1].any()
    assert not run.rewards_NT[7].any()
    assert not run.rewards_NT[UNREAD].any()  # however good its steps: a failure is not paid
    assert run.rewards_NT.sum(1).abs().max() <= 0.25
    assert run.metrics["process/without_steps_frac"] == pytest.approx(2 / 8)
    told = reference.Rollouts(
        mask_NT=batch["completion_mask"],
        rewards_N=run.trainer._rewards_G1.nansum(1),
        old_logprobs_NT=torch.zeros_like(expected_NT),
        values_NT=batch.get("old_values"),
        step_rewards_NT=expected_NT,
    )
    method = Method(advantage=advantage, outliers="keep")  # type: ignore[arg-type]
    torch.testing.assert_close(batch["advantages"], reference.advantages(told, method), atol=1e-4, rtol=1e-3)


def test_weight_zero_is_the_baseline(written: Callable[..., Written], prm: Path) -> None:
    """Bit for bit, in rewards and advantages; with the published weights it is not."""
    plain, paid = written(), written(process_reward=str(prm))
    zero = written(process_reward=str(prm), process_wrong_weight=0.0, process_correct_weight=0.0)
    assert torch.equal(plain.batch["advantages"], zero.batch["advantages"])
    assert not zero.rewards_NT.any()
    assert not torch.equal(plain.batch["advantages"], paid.batch["advantages"])


def test_a_run_with_it(demo_pairs: Any, tiny_checkpoint: Path, prm: Path, tmp_path: Path) -> None:
    """The PRM serves as reward and as the critic's beginning; the model that pays does not learn and is in no checkpoint."""
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:16]]
    before = ValueModel.from_pretrained(str(prm)).state_dict()
    config = rl_config(
        tiny_checkpoint,
        advantage="gae",
        process_reward=str(prm),
        value_init=str(prm),
        value_learning_rate=1e-9,
        health={"policy": "warn"},
    )
    final = train_rl(pairs, config, tmp_path / "run")
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"process/steps", "process/reward", "process/without_steps_frac"} <= set().union(*logged)
    for name, value in ValueModel.from_pretrained(str(final.parent / "critic")).state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
    assert not (final / "value_model.safetensors").exists()


def test_what_cannot_pay(demo_pairs: Any, tiny_checkpoint: Path, prm: Path, tmp_path: Path) -> None:
    """A method of one number per rollout, growing rollouts, a folder that is no such model, another template or tokenizer."""
    for changes in ({"advantage": "grpo", "group_size": 2}, {"advantage": "gae", "window": 8}):
        with pytest.raises(ValueError, match="process_reward"):
            rl_config(tiny_checkpoint, process_reward="x", **changes)
    tokenizer, device = load_processor(str(tiny_checkpoint)).tokenizer, torch.device("cpu")

    def load(folder: Path) -> ProcessReward:
        config = rl_config(tiny_checkpoint, process_reward=str(folder))
        return ProcessReward.load(config, PLAIN, tokenizer, device=device)

    assert not any(weight.requires_grad for weight in load(prm).model.parameters())
    with pytest.raises(CheckpointError, match="not a process reward model"):
        load(tiny_checkpoint)
    changed = tmp_path / "prm"
    shutil.copytree(prm, changed)
    card = json.loads((changed / CARD).read_text())
    (changed / CARD).write_text(json.dumps({**card, "template_hash": "0"}))
    with pytest.raises(CheckpointError, match="template"):
        load(changed)
    (changed / CARD).write_text(json.dumps(card))
    tokenizer.add_tokens(["another"])
    with pytest.raises(CheckpointError, match="its tokenizer differs"):
        load(changed)
