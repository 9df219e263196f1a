"""Other families, and samples with no, one or several images, or a video's frames, through the same code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Trainer
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import PixelConfig, SFTConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.checkpoints import CARD
from rewardlab.models.loading import freeze, load_model, load_policy, load_processor, merge_adapter, peft_config
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.capabilities import capability_report
from rewardlab.training.run.preflight import TokenCounter, drop_too_long
from rewardlab.types import IMAGE_MARK, Order, PreferencePair
from tests.support import scaled_runs
from tests.support.families import FAMILIES, NO_TRAINING, family

PLAIN = load_template("plain")
NAMES = ("qwen2_5_vl", *FAMILIES)
TRAINABLE = [name for name in NAMES if name not in NO_TRAINING]

FIRM = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3")  # no weight's gradient vanishes, of which Adam makes full steps
DAILY = (("qwen2_5_vl", "sft"), ("qwen3_5", "rl"), ("internvl", "rl"), ("idefics3", "sft"), ("molmo2", "rl"))


def some_nightly(*daily: str) -> list[Any]:
    """All families, of which those of the first round and ``daily`` ones are not nightly."""
    return [family(name, daily=name in (*FIRM, *daily)) for name in NAMES]


@pytest.mark.parametrize(
    ("name", "stage"),
    [family(name, stage, daily=(name, stage) in DAILY) for name in TRAINABLE for stage in ("sft", "rl")],
)
def test_a_mixed_batch_is_its_samples(
    name: str, stage: str, checkpoint_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read four at once or one by one, drawn all together or three by three: the same losses, gradient norms, rollouts
    and weights. A drop into the wrong row, or a pixel to the wrong image, would not be.

    A gradient that is nothing but rounding has a sign by chance, which differs between CPUs; Adam would make a whole step of it
    with its usual epsilon of 1e-8."""
    defaults = Trainer.get_optimizer_cls_and_kwargs

    def with_epsilon(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        kind, options = defaults(args, model)
        return kind, {**options, "eps": 1e-6}

    monkeypatch.setattr(Trainer, "get_optimizer_cls_and_kwargs", staticmethod(with_epsilon))
    runs = []
    for size in (4, 1):
        runs.append(tmp_path / f"{stage}{size}")
        changes = {"micro_batch_size": size, "max_steps": 2}
        changes |= {"sampling_batch_size": 3} if (stage, size) == ("rl", 1) else {}
        changes |= {} if name in FIRM else {"learning_rate": 4e-5}
        scaled_runs.run(stage, checkpoint_of(name), runs[-1], data=scaled_runs.mixed(), **changes)
    curves = [
        [
            [line.get(key, 0.0) for key in ("loss", "grad_norm", "reward", "completions/mean_length")]
            for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            if "loss" in line
        ]
        for run in runs
    ]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), atol=1e-5, rtol=1e-4)
    assert len(curves[0]) == 2
    assert all(line[1] > 0.01 for line in curves[0])
    a, b = (load_model(str(run / "final"), device="cpu")[0].state_dict() for run in runs)
    start = load_model(str(checkpoint_of(name)), device="cpu")[0].state_dict()
    for key, weight in a.items():
        torch.testing.assert_close(weight, b[key], atol=1e-4, rtol=1e-3)
    moved = [key for key, weight in a.items() if not torch.equal(weight, start[key])]
    assert any("vis" in key for key in moved)  # sighted: what sees has learnt


@pytest.mark.parametrize("name", some_nightly("llava_onevision", "internvl", "idefics3", "minicpm_v", "gemma4"))
@pytest.mark.parametrize("num_draws", [1, 2])
def test_sampled_and_trained_log_probs_agree(
    name: str, num_draws: int, checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sampler says of its tokens, with a cache and beside other prompts, is what one forward pass says; also after
    draws have ended and left the batch."""
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    check_log_probs(sampler, num_draws, monkeypatch, atol=2e-5)


def check_log_probs(sampler: HFSampler, num_draws: int, monkeypatch: pytest.MonkeyPatch, *, atol: float) -> None:
    monkeypatch.setattr(sampler, "_ends", frozenset(range(0, 500, 20)))
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in scaled_runs.mixed()[:8]]
    drawn = sampler.sample(prompts, SamplingParams(num_draws, 1.0, max_tokens=40, seed=0))
    assert len({len(completions[-1].token_ids) for completions in drawn}) > 3
    for prompt, completions in zip(prompts, drawn, strict=True):
        inputs, tokens = sampler.encode([prompt]), torch.tensor([completions[-1].token_ids])
        whole = {**inputs, "input_ids": torch.cat([inputs["input_ids"], tokens], 1)}
        for key in ("attention_mask", "mm_token_type_ids", "token_type_ids"):
            if key in whole:
                whole[key] = torch.cat([inputs[key], torch.full_like(tokens, int(key == "attention_mask"))], 1)
        with torch.no_grad():
            logprobs_LV = sampler.model(**whole).logits[0, -tokens.shape[1] - 1 : -1].float().log_softmax(-1)
        expected = logprobs_LV.gather(1, tokens[0][:, None])[:, 0]
        torch.testing.assert_close(
            torch.tensor(completions[-1].logprobs, dtype=expected.dtype), expected, atol=atol, rtol=atol / 2
        )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "minicpm_v"])
def test_linear_attention_differs_only_by_rounding(
    name: str, checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass and single steps of linear attention are two formulas of transformers, 3e-5 nats apart in float32, used by both
    for weights of any dtype. With float64 in its place nothing is left of the difference."""
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    sampler.model.double().set_experts_implementation("eager")
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check_log_probs(sampler, 2, monkeypatch, atol=1e-11)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", [family(name, daily=False) for name in NAMES])
def test_probabilities_are_sighted(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """Other images of the same sizes move the margin of each prompt, more than the other prompts of its batch do."""
    sampler, dice = HFSampler.load(checkpoint_of(name), device="cpu"), np.random.default_rng(0)

    def noise(image: bytes) -> bytes:
        file, (width, height) = io.BytesIO(), Image.open(io.BytesIO(image)).size
        Image.fromarray(dice.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(file, "png")
        return file.getvalue()

    def margins(pairs: list[PreferencePair]) -> torch.Tensor:
        prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs]
        return sampler.verdict_margins(prompts, [""] * len(prompts))[0]

    pairs = [pair for pair in scaled_runs.mixed()[:8] if pair.images]
    others = [replace(pair, images=tuple(map(noise, pair.images))) for pair in pairs]  # type: ignore[arg-type]
    together, alone = margins(pairs), torch.cat([margins([pair]) for pair in pairs])
    assert (margins(others) - together).abs().min() > 10 * (together - alone).abs().max()


@pytest.mark.parametrize("name", [family(name, daily=True) for name in NAMES])
def test_tokens_are_counted_as_the_processor_makes_them(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """From sizes alone, without decoding an image."""
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    counter = TokenCounter(sampler.processor)
    for pair in scaled_runs.mixed()[:8]:
        inputs = sampler.encode([build_messages(pair, order=Order.SWAPPED, template=PLAIN)])
        told = counter.sample(pair, Order.SWAPPED, PLAIN, room=7)
        own = inputs["input_ids"].shape[1]
        assert told.total - 7 == own or (name == "llava_onevision" and len(pair.images) > 1 and told.total - 7 > own)
        assert told.num_images == len(pair.images)


def test_what_is_too_long(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Left out, listed and told where a limit is set; refused where there is none but the model's own."""
    pairs = scaled_runs.mixed()
    long = replace(pairs[0], pair_id="long", question="x " * 5000)
    told = {
        "model": str(tiny_checkpoint),
        "template": "plain",
    }
    kept = drop_too_long([*pairs, long], SFTConfig(**told, max_tokens=200), PLAIN, tmp_path)
    assert [pair.pair_id for pair in kept] == [pair.pair_id for pair in pairs]
    row = json.loads((tmp_path / "too_long.jsonl").read_text())
    assert row["pair_id"] == "long"
    assert row["total"] > 5000
    assert "1 of 17 samples are longer than 200 tokens" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")  # of a start that failed before its first step
    drop_too_long(pairs, SFTConfig(**told, max_tokens=200), PLAIN, tmp_path)
    assert not (tmp_path / "too_long.jsonl").exists()
    drop_too_long([*pairs, long], SFTConfig(**told, max_tokens=200), PLAIN, tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')  # of this run, begun, or of another that is refused
    for others in ([*pairs, replace(long, pair_id="other")], pairs):
        drop_too_long(others, SFTConfig(**told, max_tokens=200), PLAIN, tmp_path)
        assert json.loads((tmp_path / "too_long.jsonl").read_text()) == row
    (tmp_path / "done" / "final").mkdir(parents=True)
    (tmp_path / "done" / "final" / CARD).write_text("{}")
    with pytest.raises(ConfigError, match="holds a finished run"):  # before anything is counted
        drop_too_long(pairs, SFTConfig(**told), PLAIN, tmp_path / "done")
    with pytest.raises(DataError, match=r"longer than 8,192 tokens; the longest, long"):
        drop_too_long([replace(long, question="x " * 9000)], SFTConfig(**told), PLAIN, tmp_path)


def test_one_pixel_budget(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Set in a config, kept by the checkpoint, and so by whoever asks the judge later; fewer pixels are fewer tokens."""
    config = SFTConfig(model=str(tiny_checkpoint), template="plain", pixels=PixelConfig(min=784, max=3 * 784))
    pair = scaled_runs.mixed()[6]
    before = TokenCounter(load_processor(config.model)).sample(pair, Order.GIVEN, PLAIN)
    scaled_runs.run("sft", tiny_checkpoint, tmp_path / "run", data=scaled_runs.mixed(), max_steps=1, pixels=config.pixels)
    after = TokenCounter(load_processor(str(tmp_path / "run" / "final"))).sample(pair, Order.GIVEN, PLAIN)
    assert (before.images, after.images) == (4 * 6, 4 * 2)


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "idefics3"])
def test_no_budget_without_bounds_of_pixels(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """One size for all images, no size, or a bound of the longest edge: refused with the weights unread, as the doctor says."""
    with pytest.raises(ConfigError, match=r"does not bound an image's pixels .*; set pixels to null"):
        capability_report(SFTConfig(model=str(checkpoint_of(name)), pixels=PixelConfig()))


@pytest.mark.parametrize("name", [family(name, daily=name == "qwen3_5") for name in TRAINABLE])
def test_frozen_parts_stay(name: str, checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Bit for bit, while the rest moves; vision, merger and language are all of the model; adapters keep away from them."""
    path = checkpoint_of(name)
    scaled_runs.run("sft", path, tmp_path / "run", data=scaled_runs.mixed(), max_steps=1, freeze=["vision", "merger"])
    before, after = (load_model(str(folder), device="cpu")[0].state_dict() for folder in (path, tmp_path / "run" / "final"))
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert moved
    assert not any("vis" in key or "projector" in key or "connector" in key for key in moved)
    model = load_model(str(path), device="cpu")[0]
    parts = [freeze(load_model(str(path), device="cpu")[0], [part]) for part in ("vision", "merger", "language")]
    assert all(parts)
    assert sum(parts) == sum(weight.numel() for weight in model.parameters())
    frozen = ["vision", "merger"]
    config = SFTConfig(model=str(path), lora={"r": 2}, freeze=frozen)  # type: ignore[arg-type]
    import peft

    adapted = peft.get_peft_model(model, peft_config(config.lora, model, frozen))
    names = [key for key, weight in adapted.named_parameters() if weight.requires_grad]
    assert names
    assert all("language_model" in key or "text_model" in key for key in names)


def test_a_part_that_is_not_there(tiny_checkpoint: Path) -> None:
    model = load_model(str(tiny_checkpoint), device="cpu")[0]
    with pytest.raises(ConfigError, match="no parameter of Qwen2_5_VLForConditionalGeneration matches 'audio'"):
        freeze(model, ["audio"])
    with pytest.raises(ConfigError, match="leaves nothing"):
        freeze(model, ["."])


@pytest.mark.extra("bitsandbytes")
def test_qlora_and_merging(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Four-bit weights below an adapter that learns; merged into the whole ones it is a checkpoint like any other."""
    lora = {"r": 4, "quantize": "nf4"}
    scaled_runs.run("sft", tiny_checkpoint, tmp_path / "run", data=scaled_runs.mixed(), lora=lora)
    final = tmp_path / "run" / "final"
    config = SFTConfig(model=str(tiny_checkpoint), lora=lora)  # type: ignore[arg-type]
    model = load_policy(config, tmp_path)[0]
    assert any("4bit" in type(module).__name__ for module in model.modules())
    losses = [json.loads(line).get("loss") for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses[3] < losses[0]
    merged = merge_adapter(final, tmp_path / "merged")
    whole, start = (load_model(str(folder), device="cpu")[0].state_dict() for folder in (merged, tiny_checkpoint))
    assert any(not torch.equal(weight, start[key]) for key, weight in whole.items())
    assert json.loads((merged / "rewardlab.json").read_text())["stage"] == "sft"


def test_marks_of_images_are_not_read_as_text(tiny_checkpoint: Path) -> None:
    """An image where the question places it is counted there once."""
    sampler, pair = HFSampler.load(tiny_checkpoint, device="cpu"), scaled_runs.mixed()[0]
    placed = replace(pair, question=f"Look: {IMAGE_MARK} What is it?")
    inputs = sampler.encode([build_messages(placed, order=Order.GIVEN, template=PLAIN)])
    assert TokenCounter(sampler.processor).sample(placed, Order.GIVEN, PLAIN).total == inputs["input_ids"].shape[1]


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_the_configs_frames_are_what_is_trained_on(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video of sixteen frames gives no more than the config says; reading by default would give four of this family."""
    pair = replace(scaled_runs.pairs()[0], images=(), videos=(scaled_runs.film(0),))
    write_parquet([pair], tmp_path / "pairs.parquet")
    (tmp_path / f"{stage}.yaml").write_text("frames: 2")
    shown: list[int] = []

    def train(pairs: Any, *args: Any, **kwargs: Any) -> Path:
        shown.extend(len(pair.images) for pair in pairs)
        return tmp_path / "final"

    monkeypatch.setattr(f"rewardlab.training.{stage}.train_{stage}", train)
    options = ["--data", str(tmp_path / "pairs.parquet"), "--config", str(tmp_path / f"{stage}.yaml"), "--out", str(tmp_path)]
    assert CliRunner().invoke(app, [stage, *options]).exit_code == 0
    assert shown == [2]
