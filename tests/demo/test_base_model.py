"""The base model: how it learns to see, resumed after a kill, and the one that travels with the package."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rewardlab.demo import base_model, build
from rewardlab.demo.base_model import IGNORE, FactBatcher, PerceptionConfig, _backward, batches, learn_to_see
from rewardlab.demo.build import PACKAGED_BASE, DemoConfig, build_base, pack_base
from rewardlab.demo.judge_training import cpu_kind
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.loading import load_model

CARD = json.loads((DEMO_JUDGE / "card.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_are_the_whole_batch(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """The loss and the gradient are those of the model's own loss on all rows at once; the padding is less."""
    config = PerceptionConfig(steps=1, batch=12)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    monkeypatch.setattr(base_model, "PARTS", 1)
    [whole] = next(batches(config, FactBatcher(processor), random.Random(0)))
    monkeypatch.setattr(base_model, "PARTS", parts)
    pieces = next(batches(config, FactBatcher(processor), random.Random(0)))
    assert len(pieces) == parts
    assert sum(int((piece["labels"] != IGNORE).sum()) for piece in pieces) == int((whole["labels"] != IGNORE).sum())
    assert sum(piece["input_ids"].numel() for piece in pieces) < whole["input_ids"].numel()

    expected = model(**whole)
    expected.loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    is_target = whole["labels"][:, 1:] != IGNORE
    hits = (expected.logits[:, :-1].argmax(-1) == whole["labels"][:, 1:])[is_target].float().mean()
    model.zero_grad()
    metrics = _backward(model, pieces)
    assert metrics["loss"] == pytest.approx(expected.loss.item(), rel=1e-5)
    assert metrics["token_accuracy"] == pytest.approx(hits.item(), abs=1e-6)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], rtol=1e-3, atol=1e-5)


def test_what_was_killed_goes_on(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the very weights of a training that was not."""
    monkeypatch.setattr(base_model, "SAVE_STEPS", 2)
    config, kept, losses = PerceptionConfig(steps=5, batch=4, facts=2), tmp_path / "kept.pt", []

    def stop(step: int, metrics: dict[str, float]) -> None:
        if step == 3:  # one after the last that is kept
            raise KeyboardInterrupt

    def log(step: int, metrics: dict[str, float]) -> None:
        losses.append((step, metrics["loss"]))

    (whole, processor), (killed, _), (resumed, _) = (load_model(str(tiny_checkpoint), device="cpu") for _ in range(3))
    learn_to_see(whole, processor, config, log)
    with pytest.raises(KeyboardInterrupt):
        learn_to_see(killed, processor, config, stop, kept)
    learn_to_see(resumed, processor, config, log, kept)
    assert losses[5:] == losses[2:5]
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name]), name


def test_the_packaged_base_model(tmp_path: Path) -> None:
    """Under a megabyte; it is what a build takes, whole in float32, unless the sizes are others."""
    assert sum(path.stat().st_size for path in PACKAGED_BASE.iterdir()) < 1_000_000
    config = DemoConfig.load("tiny/demo")
    folder = build_base(tmp_path, config)
    tensors = load_file(folder / "model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.float32"}
    model, _ = load_model(str(folder), device="cpu")
    assert sum(weights.numel() for weights in model.state_dict().values()) >= 750_336
    pack_base(folder, tmp_path / "packed")
    packed, again = (load_file(path / "model.int8.safetensors") for path in (PACKAGED_BASE, tmp_path / "packed"))
    assert packed.keys() == again.keys()
    for name, tensor in packed.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_other_sizes_are_trained(tmp_path: Path) -> None:
    """And so is the packaged one, if asked for."""
    small = DemoConfig(hidden=32, layers=2, vocab_size=700, base_steps=1)
    assert load_model(str(build_base(tmp_path / "small", small)), device="cpu")[0].config.text_config.hidden_size == 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "PACKAGED", {"hidden": 32, "layers": 2, "vocab_size": 700, "base_steps": 1})
        built = build_base(tmp_path / "scratch", small, from_scratch=True)
    assert load_model(str(built), device="cpu")[0].config.text_config.hidden_size == 32


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif(cpu_kind() != CARD["cpu"], reason="sums on other CPUs are taken in another order")
def test_the_packaged_base_model_is_rebuilt(tmp_path: Path) -> None:
    """Bit for bit, from nothing, on one thread; minutes."""
    torch.set_num_threads(1)
    folder = build_base(tmp_path, DemoConfig.load("tiny/demo"), from_scratch=True)
    pack_base(folder, tmp_path / "packed")
    packed = tmp_path / "packed" / "model.int8.safetensors"
    assert packed.read_bytes() == (PACKAGED_BASE / packed.name).read_bytes()
