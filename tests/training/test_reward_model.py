"""The scalar head: its loss is the formula, it sees, it learns, it resumes, and its scores are read by a benchmark."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

import rewardlab
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.config import RMConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.models.checkpoints import read_card
from rewardlab.models.loading import load_processor
from rewardlab.models.value_model import LikelihoodModel, ValueModel
from rewardlab.prompts import load_template
from rewardlab.rewards.pairwise import ScalarReward, open_scorer, score_responses, single_response_prompt
from rewardlab.samplers.hf import HFSampler, encode, encode_replies
from rewardlab.training.reward_model import BradleyTerryTrainer, build_reward_trainer, train_reward_model, write_scores
from rewardlab.types import PreferencePair
from tests.support import scaled_runs
from tests.support.configs import short_config
from tests.support.killing import killed_after_a_save

config_for = partial(short_config, RMConfig)

SINGLE = load_template("single")


@pytest.fixture(scope="module")
def pairs(demo_pairs: Any) -> list[PreferencePair]:
    """Sixteen pairs, response 0 preferred in every other one."""
    return [replace(pair, preferred=n % 2) for n, pair in enumerate(demo_pairs[0][:16])]


@pytest.fixture
def trainer(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> BradleyTerryTrainer:
    """On a head that says something."""
    made = build_reward_trainer(pairs, config_for(tiny_checkpoint), load_processor(str(tiny_checkpoint)), tmp_path)
    made.model.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return made


def test_a_response_is_shown_single_response_prompt(pairs: list[PreferencePair]) -> None:
    """With the question and the images, and without a word of the other."""
    for pair in pairs[:4]:
        for response in (0, 1):
            (message,) = single_response_prompt(pair, response, SINGLE)
            assert message.text == f"Question: {pair.question}\nResponse: {pair.responses[response]}"
            assert message.images == pair.images
            assert single_response_prompt(pair.swap(), 1 - response, SINGLE) == (message,)


def test_the_loss_is_the_formula(trainer: BradleyTerryTrainer, tiny_checkpoint: Path, pairs: list[PreferencePair]) -> None:
    """-log sigmoid(r(preferred) - r(other)), worked pair by pair from each response alone, unpadded."""
    batch = trainer.data_collator(pairs[:5])
    model = trainer.model.eval()
    encode = HFSampler.load(tiny_checkpoint, device="cpu").encode
    losses = []
    with torch.no_grad():
        for pair in pairs[:5]:
            r = [model(**encode([single_response_prompt(pair, n, SINGLE)]))[0, -1].item() for n in (0, 1)]
            losses.append(math.log(1 + math.exp(r[1 - pair.preferred] - r[pair.preferred])))
        assert len({round(loss, 4) for loss in losses}) == 5
        assert trainer.compute_loss(model, batch).item() == pytest.approx(sum(losses) / 5, abs=1e-5)


def test_exchanging_the_responses_changes_nothing(trainer: BradleyTerryTrainer, pairs: list[PreferencePair]) -> None:
    """The scalar head knows no position: the loss of the swapped pairs is the same, and their scores change places."""
    model, processor = trainer.model.eval(), trainer.data_collator._processor
    swapped = [pair.swap() for pair in pairs[:5]]
    with torch.no_grad():
        losses = [trainer.compute_loss(model, trainer.data_collator(some)).item() for some in (pairs[:5], swapped)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    there = score_responses(model, processor, swapped, SINGLE)
    torch.testing.assert_close(
        score_responses(model, processor, pairs[:5], SINGLE, batch_size=3), there.flip(1), atol=1e-5, rtol=1e-5
    )


def test_accumulation_changes_nothing(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """One step over sixteen responses at once, in four micro-batches, and in two of which each is read in parts of two pairs
    or one: the same weights."""
    heads = []
    for micro, tokens in ((16, None), (4, None), (8, 400)):
        out = tmp_path / str(micro)
        sizes = {"batch_size": 16, "micro_batch_size": micro, "micro_batch_tokens": tokens}
        final = train_reward_model(pairs, config_for(tiny_checkpoint, max_steps=1, save_steps=1, **sizes), out)
        heads.append(ValueModel.from_pretrained(str(final)).state_dict())
        logged = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
        assert logged["loss"] == pytest.approx(math.log(2), abs=1e-6)  # the untrained head says 0 of everything
        assert 0 <= logged["tokens/padding_frac"] < 0.5
    for other in heads[1:]:
        for name, weight in heads[0].items():
            torch.testing.assert_close(weight, other[name], atol=2e-5, rtol=1e-4, msg=name)


def test_it_learns_to_see_and_is_benchmarked(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """The better response says so: after 40 steps every pair is right, and a benchmark reads the scores as a judge."""
    kept = [
        replace(pair, responses=("good", "bad") if n % 2 else ("bad", "good"), preferred=1 - n % 2)
        for n, pair in enumerate(demo_pairs[0][:24])
    ]
    final = train_reward_model(kept[:16], config_for(tiny_checkpoint, max_steps=40, save_steps=40), tmp_path / "run")
    assert read_card(final)["stage"] == "rm"  # type: ignore[index]
    write_parquet(kept, tmp_path / "pairs.parquet")
    assert write_scores(final, kept, tmp_path / "scores.jsonl") == 24
    settings = bench_settings("pairs", tmp_path / "pairs.parquet", f"replay:{tmp_path / 'scores.jsonl'}", template="plain")
    report = run_bench(settings, tmp_path / "bench")[0].to_json()
    assert report["accuracy"]["micro"] == 1.0
    last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][-2]
    assert last["accuracy"] == 1.0
    assert last["margin"] > 1
    with pytest.raises(ConfigError, match="finished"):
        train_reward_model(kept[:16], config_for(tiny_checkpoint, max_steps=40, save_steps=40), tmp_path / "run")


def test_resume_gives_the_uninterrupted_weights(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Killed right after the first save, and run again: the same order of pairs, optimizer state and weights."""
    config = config_for(tiny_checkpoint)
    whole = train_reward_model(pairs, config, tmp_path / "whole")

    with killed_after_a_save(BradleyTerryTrainer):
        train_reward_model(pairs, config, tmp_path / "parts")
    with pytest.raises(ConfigError, match="other settings"):
        train_reward_model(pairs, config_for(tiny_checkpoint, learning_rate=1e-3), tmp_path / "parts")
    parts = train_reward_model(pairs, config, tmp_path / "parts")
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 4]
    a, b, fresh = (ValueModel.from_pretrained(str(folder)).state_dict() for folder in (whole, parts, tiny_checkpoint))
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], atol=1e-6, rtol=1e-5, msg=name)
        assert name == "head.bias" or not torch.equal(weight, fresh[name]), name  # a constant cancels in every margin


def test_gradient_checkpointing_changes_no_gradient(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """The backbone is asked for it, not the Trainer's model; every weight of the vision tower still gets its gradient."""
    grads = []
    for checkpointing in (False, True):
        config = config_for(tiny_checkpoint, gradient_checkpointing=checkpointing)
        made = build_reward_trainer(pairs, config, load_processor(str(tiny_checkpoint)), tmp_path)
        made.model.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
        made.compute_loss(made.model.train(), made.data_collator(pairs[:3])).backward()
        grads.append({name: p.grad for name, p in made.model.named_parameters()})
    for name, grad in grads[0].items():
        assert grad is not None, name
        assert grad.any() or "bias" in name, name
        torch.testing.assert_close(grad, grads[1][name], atol=1e-6, rtol=1e-4, msg=name)


def test_bad_input_is_named(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """No labels; a folder that holds another kind of model."""
    with pytest.raises(DataError, match="preferred"):
        train_reward_model([replace(pair, preferred=None) for pair in pairs], config_for(tiny_checkpoint), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(CheckpointError, match="rewardlab rm"):
        write_scores(tiny_checkpoint, pairs, tmp_path / "scores.jsonl")


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma4", "internvl", "idefics3", "lfm2_vl"])
def test_likelihoods_are_those_of_the_model(name: str, checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Of each response in a batch, alone through the model's own forward, whose logits some families bound or scale; in tiles
    as in one piece, and so are their gradients."""
    model = LikelihoodModel.from_pretrained(str(checkpoint_of(name))).train()
    text = model.config.get_text_config()
    if hasattr(text, "final_logit_softcapping"):
        text.final_logit_softcapping = 0.5  # as Gemma 4's own checkpoints have it, at 30
    processor = load_processor(str(checkpoint_of(name)))
    prompts = [single_response_prompt(pair, n, load_template("reply")) for pair in scaled_runs.mixed()[:4] for n in (0, 1)]
    batch = encode_replies(processor, prompts)
    scores, gradients = [], []
    for _ in range(2):
        model.zero_grad()
        scores.append(model(**batch)[:, 0])
        (-scores[-1]).logsumexp(0).backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
        add_fused_lm_head(model.language_model)
        model.in_tiles = True
    torch.testing.assert_close(*scores)
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
    for n, prompt in enumerate(prompts):
        row = encode_replies(processor, [prompt])
        labels = row.pop("labels")
        logprobs = model.language_model(**row).logits.log_softmax(-1)[:, :-1]
        of_labels = logprobs.gather(2, labels[:, 1:, None].clamp(min=0))[..., 0][labels[:, 1:] != -100]
        assert scores[0][n].item() == pytest.approx(of_labels.sum().item(), abs=1e-3)


def test_a_reply_is_scored_by_its_likelihood(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """A score is the sum of the log-probs of the response and its end, after the question; training raises that of preferred
    responses above the others'; the folder judges as head:, pays as rm:, and writes as a language model."""
    config = config_for(tiny_checkpoint, template="reply", explain_weight=1.0, max_steps=30, learning_rate=3e-3)
    final = train_reward_model(pairs, config, tmp_path / "rm")
    model, processor, template = open_scorer(final)
    scores = score_responses(model, processor, pairs[:4], template, batch_size=3)
    for pair, both in zip(pairs[:4], scores, strict=True):
        [prompt, reply] = single_response_prompt(pair, 0, template)
        assert (prompt.images, reply.role, reply.text) == (pair.images, "assistant", pair.responses[0])
        before, whole = encode(processor, [(prompt,)]), encode(processor, [(prompt,)], [f"{reply.text}<|im_end|>"])
        logprobs = model.language_model(**whole).logits.log_softmax(-1)[0, :-1]
        of_tokens = logprobs.gather(1, whole["input_ids"][0, 1:, None])[before["input_ids"].shape[1] - 1 :]
        assert both[0].item() == pytest.approx(of_tokens.sum().item(), abs=1e-3)
    lines = [json.loads(line) for line in (tmp_path / "rm" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["explain_loss"] for line in lines if "explain_loss" in line]
    assert 0 < losses[-1] < losses[0]
    judge = rewardlab.open_judge(f"head:{final}")
    judged = judge.compare(pairs[0].question, pairs[0].responses, images=pairs[0].images)
    assert judged.judgment.votes[0].margin == pytest.approx((scores[0, 0] - scores[0, 1]).item(), abs=1e-3)
    rewards, _ = ScalarReward(final)(pairs[:2], [pair.responses[0] for pair in pairs[:2]], [(), ()], 0)
    assert rewards == pytest.approx(scores[:2, 0].tolist(), abs=1e-3)
    with pytest.raises(DataError, match="a response with images is no answer in words"):
        single_response_prompt(replace(pairs[0], response_images=((pairs[0].images[0],), ())), 0, template)
