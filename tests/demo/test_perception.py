"""How the base model learns to see: a batch in parts is the batch in one piece; what was killed goes on as it would have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from rewardlab.demo import perception
from rewardlab.demo.perception import IGNORE, FactBatcher, PerceptionConfig, _backward, batches, learn_to_see
from rewardlab.models.loading import load_model


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_are_the_whole_batch(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """The loss and the gradient are those of the model's own loss on all rows at once; the padding is less."""
    config = PerceptionConfig(steps=1, batch=12)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    monkeypatch.setattr(perception, "PARTS", 1)
    [whole] = next(batches(config, FactBatcher(processor), random.Random(0)))
    monkeypatch.setattr(perception, "PARTS", parts)
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
    monkeypatch.setattr(perception, "SAVE_STEPS", 2)
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
