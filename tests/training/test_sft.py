"""Cold start: loss on assistant tokens only, the prompt of inference, adapters, cards, resume, and no overwriting."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import SFTConfig as TRLSFTConfig

from rewardlab.config import LoraConfig, SFTConfig
from rewardlab.demo.judgments import grounded_judgment
from rewardlab.errors import CheckpointError, ConfigError, DataError, OutputError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.models.checkpoints import read_card, template_for
from rewardlab.models.loading import load_model, load_policy, load_processor
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import (
    FirstTokenOnly,
    ResumableSFTTrainer,
    sft_dialogues,
    train_sft,
)
from rewardlab.types import Order, PreferencePair
from tests.support.configs import short_config
from tests.support.killing import killed_after_a_save

config_for = partial(short_config, SFTConfig, template="plain")

PLAIN, VERDICT = load_template("plain"), load_template("verdict")


@pytest.fixture(scope="module")
def taught(demo_pairs: Any) -> list[PreferencePair]:
    """24 pairs with a grounded judgment, in alternating orders."""
    pairs, truths = demo_pairs
    rows = []
    for n, (pair, truth) in enumerate(zip(pairs[:24], truths[:24], strict=True)):
        order = Order.SWAPPED if n % 2 else Order.GIVEN
        rows.append(replace(pair, order=order, judgment=grounded_judgment(truth, pair.shown(order))[0], attempts="1"))
    return rows


def test_loss_covers_the_judgment_and_nothing_else(tiny_checkpoint: Path, taught: list[PreferencePair], tmp_path: Path) -> None:
    """Labels are the teacher's text and its end token; the prompt before them is, token for token, the sampler's."""
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    processor.tokenizer.padding_side = "right"
    trainer = ResumableSFTTrainer(
        model=model,
        args=TRLSFTConfig(max_length=None, **common_arguments(config_for(tiny_checkpoint), tmp_path)),
        train_dataset=dialogue_dataset(PromptReader(taught, PLAIN), sft_dialogues(taught[:8], PLAIN)),
        processing_class=processor,
    )
    batch = trainer.data_collator([trainer.train_dataset[n] for n in range(8)])
    sampler = HFSampler(model, processor)
    for n, pair in enumerate(taught[:8]):
        ids, labels = batch["input_ids"][n], batch["labels"][n]
        trained = labels != -100
        text = processor.tokenizer.decode(labels[trained])
        assert text == f"{pair.judgment}<|im_end|>\n"
        start = int(trained.nonzero()[0])
        prompt = sampler.encode([build_messages(pair, order=pair.order, template=PLAIN)])["input_ids"][0]
        assert ids[:start].tolist() == prompt.tolist()


def test_a_classifier_is_trained_on_both_orders_and_the_verdict_token(
    tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path
) -> None:
    """Either verdict is right in exactly half of the rows, a pair's two rows stand together, and of each row one token is
    trained: the verdict, at the place where the judge is asked for its probability."""
    pairs = [replace(demo_pairs[0][n], preferred=1) for n in range(6)]  # one-sided labels
    dialogues = sft_dialogues([*pairs, replace(pairs[0], preferred=None)], VERDICT)
    rows = dialogue_dataset(PromptReader(pairs, VERDICT), dialogues)
    answers = [row["completion"][0]["content"] for row in rows]
    assert answers == ["2", "1"] * 6
    assert sft_dialogues(pairs, VERDICT, numbers={2, 4}) == [dialogues[n] for n in (4, 5, 8, 9)]
    with pytest.raises(DataError, match="held out for evaluation"):
        sft_dialogues(pairs, VERDICT, numbers=())
    for n, pair in enumerate(pairs):
        first, second = (rows[2 * n + side]["prompt"][0]["content"][-1]["text"] for side in (0, 1))
        assert f"Response 1: {pair.responses[0]}\n" in first
        assert f"Response 1: {pair.responses[1]}\n" in second
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    processor.tokenizer.padding_side = "right"
    trainer = ResumableSFTTrainer(
        model=model,
        args=TRLSFTConfig(max_length=None, **common_arguments(config_for(tiny_checkpoint, template="verdict"), tmp_path)),
        train_dataset=rows,
        processing_class=processor,
    )
    batch = FirstTokenOnly(trainer.data_collator)([trainer.train_dataset[n] for n in range(12)])
    sampler = HFSampler(model.eval(), load_processor(str(tiny_checkpoint)))
    margins, coverage = sampler.verdict_margins(
        [build_messages(pair, order=order, template=VERDICT) for pair in pairs for order in Order], [""] * 12
    )
    logprobs = []
    for n, answer in enumerate(answers):
        ids, trained = batch["input_ids"][n], batch["labels"][n] != -100
        assert processor.tokenizer.decode(ids[trained]) == answer
        start = int(trained.nonzero()[0])
        prompt = sampler.encode([build_messages(pairs[n // 2], order=list(Order)[n % 2], template=VERDICT)])["input_ids"][0]
        assert ids[:start].tolist() == prompt[prompt != processor.tokenizer.pad_token_id].tolist()
        margin = margins[n] if answer == "1" else -margins[n]
        logprobs.append((coverage[n] * margin.sigmoid()).log())
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model.eval(), dict(batch))
    assert loss.item() == pytest.approx(-torch.stack(logprobs).mean().item(), abs=1e-4)


@pytest.mark.nightly
def test_a_classifier_learns_its_labels(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """The better response says so: after 60 steps the judge that the folder opens is sure of it, in both orders, without a
    teacher's judgment in the data."""
    pairs = [replace(pair, responses=("good", "bad"), preferred=0) for pair in demo_pairs[0][:16]]
    config = config_for(tiny_checkpoint, template="verdict", max_steps=60, save_steps=60, learning_rate=1e-2)
    final = train_sft(pairs, config, tmp_path / "run")
    judge = open_generative_judge(f"hf:{final}")
    judged = [judge.compare(pair) for pair in pairs[:4]]
    assert all(j.share_0 is not None and j.share_0 > 0.9 for j in judged)
    with pytest.raises(DataError, match="preferred"):
        train_sft([replace(pair, preferred=None) for pair in pairs], config, tmp_path / "none")


def test_training_moves_the_model_and_leaves_a_card(
    tiny_checkpoint: Path, taught: list[PreferencePair], tmp_path: Path
) -> None:
    """The result is a checkpoint folder that knows its template; a second run into it is refused."""
    final = train_sft(taught, config_for(tiny_checkpoint), tmp_path / "run")
    card = read_card(final)
    assert card is not None
    assert (card["stage"], card["template_hash"]) == ("sft", PLAIN.hash)
    assert template_for(final, None) == PLAIN
    with pytest.raises(CheckpointError, match=PLAIN.hash):
        template_for(final, "r1_reward")
    before, after = (load_model(str(folder), device="cpu")[0] for folder in (tiny_checkpoint, final))
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved)
    with pytest.raises(ConfigError, match="finished"):
        train_sft(taught, config_for(tiny_checkpoint), tmp_path / "run")


def test_resume_gives_the_uninterrupted_weights(tiny_checkpoint: Path, taught: list[PreferencePair], tmp_path: Path) -> None:
    """Killed at the first save, then, it seems, in the middle of another; and run again. Worker processes read the samples."""
    config = config_for(tiny_checkpoint, data_workers=2)
    whole = train_sft(taught, config, tmp_path / "whole")

    with killed_after_a_save(ResumableSFTTrainer):
        train_sft(taught, config, tmp_path / "parts")
    half_saved = tmp_path / "parts" / "checkpoint-3"
    half_saved.mkdir()
    (half_saved / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="other settings"):
        train_sft(taught, config_for(tiny_checkpoint, learning_rate=1e-3), tmp_path / "parts")
    parts = train_sft(taught, config, tmp_path / "parts")
    assert not half_saved.exists()
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 4]  # the last line is the run's own summary
    logs = [map(json.loads, (tmp_path / run / "metrics.jsonl").read_text().splitlines()) for run in ("whole", "parts")]
    of_whole, of_parts = ([line.get("num_tokens") for line in log] for log in logs)
    assert of_whole == of_parts
    assert of_whole[3] > of_whole[2] > 0
    a, b = (load_model(str(folder), device="cpu")[0] for folder in (whole, parts))
    for name, weight in a.state_dict().items():
        torch.testing.assert_close(weight, b.state_dict()[name], atol=1e-6, rtol=1e-5, msg=name)


@pytest.fixture(scope="module")
def adapters(tiny_checkpoint: Path, taught: list[PreferencePair], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of the tiny checkpoint, of other seeds."""
    out = tmp_path_factory.mktemp("adapters")
    seeds = (1, 2)
    return [train_sft(taught, config_for(tiny_checkpoint, lora=LoraConfig(r=4), seed=n), out / str(n)) for n in seeds]


def test_lora_trains_adapters_only(
    tiny_checkpoint: Path, taught: list[PreferencePair], adapters: list[Path], tmp_path: Path
) -> None:
    """An adapter folder with a card; the base weights are not in it."""
    final = adapters[0]
    assert (final / "adapter_config.json").exists()
    assert not (final / "model.safetensors").exists()
    assert template_for(final, None) == PLAIN
    prompt = [build_messages(taught[0], order=Order.GIVEN, template=PLAIN)]
    attached, merged = load_model(str(final), device="cpu")[0], load_policy(config_for(final), tmp_path / "next")[0]
    logits = [model(**HFSampler(model, load_model(str(final))[1]).encode(prompt)).logits for model in (attached, merged)]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
    plain = load_model(str(tiny_checkpoint), device="cpu")[0]
    assert (plain(**HFSampler(plain, load_model(str(final))[1]).encode(prompt)).logits - logits[1]).abs().max() > 1e-3


def test_an_adapter_on_an_adapter(
    taught: list[PreferencePair], adapters: list[Path], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """What is served is base + both, not base + the last."""
    first = adapters[0]
    second = train_sft(taught, config_for(first, lora=LoraConfig(r=4)), tmp_path / "two")
    prompt = [build_messages(taught[0], order=Order.GIVEN, template=PLAIN)]

    def logits(folder: Path) -> torch.Tensor:
        model, processor = load_model(str(folder), device="cpu")
        with torch.no_grad():
            return model(**HFSampler(model, processor).encode(prompt)).logits

    merged = tmp_path / "two" / "base"
    torch.testing.assert_close(logits(merged), logits(first), atol=1e-4, rtol=1e-4)
    assert (logits(first) - logits(tiny_checkpoint)).abs().max() > 1e-3
    adapter = json.loads((second / "adapter_config.json").read_text())
    assert Path(adapter["base_model_name_or_path"]) == merged.resolve()
    whole, processor = load_model(str(merged), device="cpu")
    import peft

    whole = peft.PeftModel.from_pretrained(whole, str(second)).eval()
    with torch.no_grad():
        expected = whole(**HFSampler(whole.base_model.model, processor).encode(prompt)).logits
    torch.testing.assert_close(logits(second), expected, atol=1e-4, rtol=1e-4)


def test_the_base_of_a_failed_start_is_not_anothers(adapters: list[Path], tmp_path: Path) -> None:
    """Another adapter in the same folder is merged anew; the same one is not."""
    first, second = adapters

    def merged(adapter: Path) -> tuple[torch.Tensor, int]:
        model, _ = load_policy(config_for(adapter, lora=LoraConfig(r=4)), tmp_path / "run")
        return torch.cat([w.flatten() for w in model.parameters()]), (tmp_path / "run" / "base").stat().st_ino

    of_first, of_second = merged(first), merged(second)
    assert not torch.equal(of_first[0], of_second[0])
    again = merged(second)
    assert torch.equal(again[0], of_second[0])
    assert again[1] == of_second[1], "merged again"
    assert torch.equal(merged(first)[0], of_first[0])


def test_bad_input_is_said_before_anything_is_written(
    tiny_checkpoint: Path, demo_pairs: Any, taught: list[PreferencePair], tmp_path: Path
) -> None:
    """No judgments, fewer than a batch of them; a place that cannot be written."""
    with pytest.raises(DataError, match="distill"):
        train_sft(demo_pairs[0][:4], config_for(tiny_checkpoint), tmp_path / "none")
    with pytest.raises(DataError, match="14 pairs hold 1 judgments to learn from, fewer than the 8 of one batch"):
        train_sft([taught[0], *demo_pairs[0][47:60]], config_for(tiny_checkpoint), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="writable"):
        train_sft(taught, config_for(tiny_checkpoint), tmp_path / "file" / "run")
