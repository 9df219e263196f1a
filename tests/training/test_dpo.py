"""Preference optimisation: which judgments are compared, losses as TRL's own code has them, runs that learn and resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from trl import DPOTrainer

from rewardlab.cli import main
from rewardlab.config import DPOConfig
from rewardlab.config.base import LoraConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.models import loading
from rewardlab.models.checkpoints import CARD, read_card
from rewardlab.models.loading import load_model, peft_config
from rewardlab.prompts import load_template
from rewardlab.training import dpo
from rewardlab.training.dpo import (
    JudgmentPair,
    PreferenceTrainer,
    judgment_pairs_of_votes,
    log_contradictions,
    read_comparisons,
    train_dpo,
)
from rewardlab.types import Order, PreferencePair
from tests.support.configs import short_config
from tests.support.killing import killed_after_a_save
from tests.support.shell import run_main

config_for = partial(short_config, DPOConfig, template="plain", learning_rate=1e-3, batch_size=8, micro_batch_size=4)
Votes = list[tuple[int, str, str | None, str]]  # row, order, choice, text


def write_votes(path: Path, votes: Votes) -> Path:
    lines: list[Any] = [{"identity": {}}]
    for row, order, choice, text in votes:
        lines.append({"pass": "votes", "row": row, "votes": [{"order": order, "choice": choice, "text": text}]})
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def judged(text: str, answer: int) -> str:
    return f"<think>{text}</think><answer>{answer}</answer>"


@pytest.fixture
def pairs(demo_pairs: Any) -> list[PreferencePair]:
    """Eight pairs whose response 0 is preferred."""
    return [replace(pair, preferred=0, judgment="", order=Order.GIVEN) for pair in demo_pairs[0][:8]]


@pytest.fixture
def judgments(pairs: list[PreferencePair], tmp_path: Path) -> Path:
    """A right and a wrong judgment of each pair, of different lengths."""
    path = tmp_path / "judgments.jsonl"
    rows = [
        {"pair_id": pair.pair_id, "chosen": judged("The first." * (1 + n % 3), 1), "rejected": judged("The second one.", 2)}
        for n, pair in enumerate(pairs)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_votes_make_comparisons(pairs: list[PreferencePair], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The n-th right vote with the n-th wrong one of its pair and order; the teacher's judgment where no vote is right."""
    pairs[2] = replace(pairs[2], judgment="the teacher's")
    votes: Votes = [
        (0, "given", "first", "right 1"),
        (0, "given", "second", "wrong 1"),
        (0, "given", "second", "wrong 1"),  # an equal text is no second judgment
        (0, "given", "first", "right 2"),
        (0, "given", "second", "wrong 2"),
        (0, "swapped", "first", "wrong, as the other is shown first"),
        (0, "swapped", None, "no verdict"),
        (1, "given", "first", "right alone"),
        (2, "given", "second", "wrong alone"),
        (2, "swapped", "first", "in the order that the teacher did not see"),
        (3, "swapped", "second", "right"),
        (3, "swapped", "first", "wrong"),
    ]
    path = write_votes(tmp_path / "votes.jsonl", votes)
    first = JudgmentPair(0, Order.GIVEN, "right 1", "wrong 1")
    others = [JudgmentPair(2, Order.GIVEN, "the teacher's", "wrong alone"), JudgmentPair(3, Order.SWAPPED, "right", "wrong")]
    assert judgment_pairs_of_votes(pairs, path, 1) == [first, *others]
    assert "3 comparisons" in (log := capsys.readouterr().err)
    assert "1 of them with the teacher's as right; 1 of 12 votes have no verdict" in log
    assert judgment_pairs_of_votes(pairs, path, 5) == [first, JudgmentPair(0, Order.GIVEN, "right 2", "wrong 2"), *others]
    shifted = judgment_pairs_of_votes(pairs[1:], path, 1, left_out={0})  # row 0 could not be read
    assert [(c.number, c.chosen) for c in shifted] == [(1, "the teacher's"), (2, "right")]
    halves = write_votes(tmp_path / "halves.jsonl", [(0, "given", "first", "a\ud800"), (0, "given", "second", "b")])
    assert judgment_pairs_of_votes(pairs, halves, 1) == [JudgmentPair(0, Order.GIVEN, "a?", "b")]
    with pytest.raises(DataError, match=r"has a vote on pair 2, but --data has 2 pairs"):
        judgment_pairs_of_votes(pairs[:2], path, 1)
    with pytest.raises(DataError, match=r"in the same order \(\d+ votes have a verdict, \d+ have none\)"):
        judgment_pairs_of_votes(pairs, write_votes(tmp_path / "right.jsonl", votes[:1]), 1)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ({"pair_id": "x", "chosen": "a"}, "line 1: lacks 'rejected'"),
        ({"pair_id": "x", "chosen": "a", "rejected": "a"}, "chosen and rejected are equal"),
        ({"pair_id": "x", "chosen": "a", "rejected": " "}, "must be judgments, not empty"),
        ({"pair_id": "x", "chosen": "a", "rejected": "b", "order": "first"}, "line 1: 'first' is not a valid Order"),
        ({"pair_id": "x", "chosen": "a\ud800", "rejected": "b"}, "half a surrogate pair"),
        ([1], "line 1: "),
        ({"pair_id": "x", "chosen": "a", "rejected": "b"}, "none of its 1 lines is on a pair of --data"),
    ],
)
def test_judgments_that_cannot_be_compared(pairs: list[PreferencePair], tmp_path: Path, line: Any, error: str) -> None:
    path = tmp_path / "judgments.jsonl"
    path.write_text(json.dumps(line), encoding="utf-8")
    with pytest.raises(DataError, match=error):
        read_comparisons(path, pairs)


def test_a_file_of_judgments_that_cannot_be_read(pairs: list[PreferencePair], tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff")
    for path in (tmp_path / "binary.jsonl", tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_comparisons(path, pairs)


def test_chosen_judgments_against_their_labels(pairs: list[PreferencePair], capsys: pytest.CaptureFixture[str]) -> None:
    """Counted, and trained: they may be better in another way. An unlabelled pair has nothing to be against."""
    pairs[3] = replace(pairs[3], preferred=None)
    made = [JudgmentPair(n, Order.SWAPPED, judged("x", 1 + n % 2), "y") for n in range(4)]
    log_contradictions([*made, JudgmentPair(4, Order.SWAPPED, "no verdict", "y")], pairs, load_template("plain"))
    assert "2 of 5 chosen judgments have a verdict against their pair's label" in capsys.readouterr().err
    log_contradictions(made[1::2], pairs, load_template("plain"))
    assert not capsys.readouterr().err


@pytest.fixture
def trainer_of(
    tiny_checkpoint: Path, pairs: list[PreferencePair], judgments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PreferenceTrainer]:
    """``trainer_of(losses, ...)``: a trainer before its first step, whose policy is not the reference."""

    def make(losses: dict[str, float], **changes: Any) -> PreferenceTrainer:
        made: list[PreferenceTrainer] = []

        def stop(stage: Any) -> Path:
            made.append(stage.build(None).trainer)
            return Path()

        monkeypatch.setattr(dpo, "run_stage", stop)
        train_dpo(pairs, config_for(tiny_checkpoint, losses=losses, **changes), tmp_path / "run", judgments=judgments)
        generator = torch.Generator().manual_seed(0)
        for weight in made[0].model.parameters():
            if weight.requires_grad:
                weight.data += 0.02 * torch.randn(weight.shape, generator=generator)
        return made[0]

    return make


@pytest.mark.parametrize(("ours", "theirs"), [("dpo", "sigmoid"), ("bco", "bco_pair"), ("sft", "sft")])
def test_losses_are_trls(trainer_of: Callable[..., PreferenceTrainer], ours: str, theirs: str) -> None:
    """TRL's mean over the chosen tokens of a batch is ours for a batch of one comparison."""
    trainer = trainer_of({ours: 1.0} | ({"dpo": 1e-9} if ours == "sft" else {}))
    rows = [trainer.train_dataset[n] for n in range(1 if ours == "sft" else 3)]
    batch = trainer.data_collator(rows)
    trainer.loss_types, trainer.loss_weights = [theirs], [1.0]
    with torch.no_grad():
        expected = DPOTrainer._compute_loss(trainer, trainer.model, batch, False)
        found = trainer._compute_loss(trainer.model, batch, False)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert float(found) != pytest.approx(0.6931, abs=1e-3)  # of a policy that is the reference


def test_simpo_by_hand(trainer_of: Callable[..., PreferenceTrainer]) -> None:
    """-log sigmoid(beta (mean log-prob of chosen - of rejected) - margin), and no reference model in memory."""
    trainer = trainer_of({"simpo": 1.0}, beta=2.0, margin=0.5)
    assert trainer.ref_model is None
    means = []
    with torch.no_grad():
        for n in range(3):
            batch = trainer.data_collator([trainer.train_dataset[n]])
            logits = trainer.model(**{name: value for name, value in batch.items() if name != "completion_mask"}).logits
            logprobs = logits[:, :-1].log_softmax(-1).gather(2, batch["input_ids"][:, 1:, None])[..., 0]
            mask = batch["completion_mask"][:, 1:]
            means.append((logprobs * mask).sum(1) / mask.sum(1))
        expected = sum(-torch.nn.functional.logsigmoid(2 * (mean[0] - mean[1]) - 0.5) for mean in means) / 3
        found = trainer._compute_loss(trainer.model, trainer.data_collator([trainer.train_dataset[n] for n in range(3)]), False)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_parts_of_a_micro_batch_give_its_gradient_and_metrics(trainer_of: Callable[..., PreferenceTrainer]) -> None:
    """Parts have unequal numbers of comparisons: a mean of their means is another number."""
    gradients, logged = [], []
    for limit in (None, 300):
        trainer = trainer_of({"dpo": 0.8, "bco": 0.2, "sft": 1.0}, micro_batch_tokens=limit)
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = 1
        batch = trainer.data_collator([trainer.train_dataset[n] for n in range(3)])
        parts = len(trainer._parts(batch))
        trainer.training_step(trainer.model, batch)
        trainer.log({})
        logged.append({name: trainer.state.log_history[-1][name] for name in ("accuracy", "margin", "logps/chosen")})
        gradients.append((parts, torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])))
    (whole, a), (parts, b) = gradients
    assert whole == 1 < parts
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert logged[1] == pytest.approx(logged[0], rel=1e-4)


def test_the_reference_is_what_training_starts_from(
    trainer_of: Callable[..., PreferenceTrainer], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of an adapter's base in bfloat16, with the adapter, rounded once. Its vision tower reads a square where
    another process may have images."""
    model, processor = load_model(str(tiny_checkpoint), device="cpu", dtype="bfloat16")
    model.save_pretrained(tmp_path / "rounded")
    processor.save_pretrained(tmp_path / "rounded")
    model, _ = load_model(str(tmp_path / "rounded"), device="cpu")
    adapted = peft.get_peft_model(model, peft_config(LoraConfig(r=4), model, []))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    adapted.save_pretrained(tmp_path / "adapter")
    processor.save_pretrained(tmp_path / "adapter")
    monkeypatch.setattr(loading, "num_processes", lambda: 2)
    reference = trainer_of({"dpo": 1.0}, model=str(tmp_path / "adapter")).ref_model
    start = load_model(str(tmp_path / "run" / "base"), device="cpu")[0].state_dict()
    found = reference.state_dict()
    assert found.keys() == start.keys()
    assert all(torch.equal(weight, found[name]) for name, weight in start.items())
    seen: list[Any] = []
    reference.model.visual.register_forward_hook(lambda *call: seen.append(call))
    with torch.no_grad():
        reference(input_ids=torch.tensor([[5, 6, 7]]), attention_mask=torch.ones(1, 3, dtype=torch.long))
    assert len(seen) == 1


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}])
def test_a_judge_learns_to_prefer(
    tiny_checkpoint: Path, pairs: list[PreferencePair], judgments: Path, tmp_path: Path, lora: Any
) -> None:
    config = config_for(tiny_checkpoint, max_steps=6, learning_rate=3e-3, beta=0.5, lora=lora)
    final = train_dpo(pairs, config, tmp_path / "run", judgments=judgments)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["margin"] == pytest.approx(0, abs=1e-5)  # the policy is the reference
    assert rows[5]["accuracy"] == 1
    assert rows[5]["margin"] > 0.5
    assert read_card(final)["stage"] == "dpo"


@pytest.mark.nightly
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    tiny_checkpoint: Path, pairs: list[PreferencePair], judgments: Path, tmp_path: Path
) -> None:
    config = config_for(tiny_checkpoint)
    whole = train_dpo(pairs, config, tmp_path / "whole", judgments=judgments)
    with killed_after_a_save(PreferenceTrainer):
        train_dpo(pairs, config, tmp_path / "parts", judgments=judgments)
    parts = train_dpo(pairs, config, tmp_path / "parts", judgments=judgments)
    a, b = (load_model(str(folder), device="cpu")[0].state_dict() for folder in (whole, parts))
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], atol=1e-6, rtol=1e-5, msg=name)


def test_the_command(tiny_checkpoint: Path, pairs: list[PreferencePair], judgments: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.parquet"
    write_parquet(pairs, data)
    words = ["dpo", "--data", data, "--model", tiny_checkpoint, "--out", tmp_path / "run", "--config", "dpo/simpo"]
    words += ["template=plain", "batch_size=8", "micro_batch_size=4", "max_steps=1", "gradient_checkpointing=false"]
    refused = run_main(main, *words)
    assert refused.returncode == 2
    assert "give --votes FILE or --judgments FILE, not both" in refused.stderr
    assert "pairs:" not in refused.stderr  # which are read later
    done = run_main(main, *words, "--judgments", judgments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "final" / "config.json").exists()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"losses": {"sft": 1.0}}, "losses has sft alone"),
        ({"losses": {"dpo": 0.0}}, "a weight in losses is not above 0"),
        ({"losses": {}}, "losses"),
        ({"margin": 0.5}, "margin 0.5 has no effect without SimPO: add simpo to losses"),
        ({"lora": {"dropout": 0.1}}, "lora.dropout 0.1 has no effect"),
        ({"micro_batch_size": 1}, "counts both judgments of a comparison; make it even"),
    ],
)
def test_configs_that_train_nothing(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        config_for("x", **changes)


def test_a_judge_of_another_template_is_refused(
    tiny_checkpoint: Path, pairs: list[PreferencePair], judgments: Path, tmp_path: Path
) -> None:
    judge = Path(shutil.copytree(tiny_checkpoint, tmp_path / "judge"))
    (judge / CARD).write_text(json.dumps({"template": "plain", "template_hash": "0"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="template"):
        train_dpo(pairs, config_for(judge, max_steps=1, save_steps=1), tmp_path / "run", judgments=judgments)


def test_one_source_and_enough_of_it(
    tiny_checkpoint: Path, pairs: list[PreferencePair], judgments: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="give --votes FILE or --judgments FILE, not both"):
        train_dpo(pairs, config_for(tiny_checkpoint), tmp_path / "run", judgments=judgments, votes=judgments)
    with pytest.raises(ConfigError, match="comparisons_per_order 2 counts votes"):
        train_dpo(pairs, config_for(tiny_checkpoint, comparisons_per_order=2), tmp_path / "run", judgments=judgments)
    with pytest.raises(DataError, match="8 comparisons are 16 sequences, fewer than the 32 of one batch"):
        train_dpo(pairs, config_for(tiny_checkpoint, batch_size=32), tmp_path / "run", judgments=judgments)
