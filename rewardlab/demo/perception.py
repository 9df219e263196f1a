"""The perception stage: the tiny base model learns to name what it sees, once, before the pipeline begins.

It stands in for what a hub checkpoint would bring. The model reads an image and short facts about it ("star:" -> "cyan.")
and is trained on the continuations alone. It never sees a pair, a response, a judgment or a held-out scene or scan.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from rewardlab.demo.contrast_pairs import Picture
from rewardlab.demo.difficulties import DIFFICULTIES, STANDARD
from rewardlab.demo.facts import Fact, facts_of

IGNORE = -100
PARTS = 2  # of a batch
SAVE_STEPS = 250


@dataclass(frozen=True)
class PerceptionConfig:
    """Steps of ``batch`` images with ``facts`` facts each; a share ``digits`` of the images are cards of real scans."""

    steps: int
    batch: int = 32
    facts: int = 8
    digits: float = 0.3
    learning_rate: float = 3e-3
    seed: int = 0
    difficulty: str = STANDARD


@dataclass(frozen=True)
class FactRow:
    """The tokens of one row of facts behind the prompt, and its labels: the continuations, :data:`IGNORE` elsewhere."""

    ids: list[int]
    labels: list[int]


class FactBatcher:
    """Turns pictures and facts into model inputs; labels cover the continuations of the facts and nothing else."""

    def __init__(self, processor: Qwen2_5_VLProcessor) -> None:
        self.processor = processor
        chat: Any = [{"role": "user", "content": [{"type": "image"}]}]
        self._prompt = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        self._cache: dict[str, list[int]] = {}

    def _ids(self, text: str) -> list[int]:
        if text not in self._cache:
            self._cache[text] = self.processor.tokenizer(text)["input_ids"]
        return self._cache[text]

    def row(self, facts: Sequence[Fact]) -> FactRow:
        """Return the facts of one picture as tokens."""
        ids, labels = [], []
        for n, (fact_prompt, continuation) in enumerate(facts):
            prompt_ids, target_ids = self._ids(f" {fact_prompt}" if n else fact_prompt), self._ids(continuation)
            ids += prompt_ids + target_ids
            labels += [IGNORE] * len(prompt_ids) + target_ids
        return FactRow(ids, labels)

    def __call__(self, images: Sequence[Image.Image], rows: Sequence[FactRow]) -> dict[str, torch.Tensor]:
        """Return the inputs and labels of pictures, each with its row, padded on the right to the longest of them."""
        inputs = self.processor(text=[self._prompt] * len(images), images=list(images), return_tensors="pt")
        prompt = inputs["input_ids"]
        longest = max(len(row.ids) for row in rows)

        def padded(values: Sequence[list[int]], fill: int) -> torch.Tensor:
            return torch.tensor([row + [fill] * (longest - len(row)) for row in values])

        rest = padded([row.ids for row in rows], self.processor.tokenizer.pad_token_id)
        ids = torch.cat([prompt, rest], 1)
        mask = padded([[1] * len(row.ids) for row in rows], 0)
        return {
            "input_ids": ids,
            "attention_mask": torch.cat([torch.ones_like(prompt), mask], 1),
            "mm_token_type_ids": (ids == self.processor.image_token_id).long(),
            "labels": torch.cat([torch.full_like(prompt, IGNORE), padded([row.labels for row in rows], IGNORE)], 1),
            "pixel_values": inputs["pixel_values"],
            "image_grid_thw": inputs["image_grid_thw"],
        }


def batches(config: PerceptionConfig, batcher: FactBatcher, rng: random.Random) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Yield each batch in :data:`PARTS` of rows of like length: together they hold less padding than one would."""
    size = max(1, config.batch // PARTS)
    difficulty = DIFFICULTIES[config.difficulty]

    def draw_picture(rng: random.Random) -> tuple[Picture, Image.Image]:
        picture = difficulty.view(rng, config.digits)
        return picture, difficulty.render(picture, rng)

    while True:
        pictures = [draw_picture(rng) for _ in range(config.batch)]
        rows = [batcher.row(facts_of(rng, picture, config.facts, difficulty.facts)) for picture, _ in pictures]
        order = sorted(range(config.batch), key=lambda n: len(rows[n].ids))
        parts = [order[start : start + size] for start in range(0, config.batch, size)]
        yield [batcher([pictures[n][1] for n in part], [rows[n] for n in part]) for part in parts]


def learning_rate_scale(step: int, steps: int, warmup: int = 50) -> float:
    """Return the rate's factor: linear warm-up, then flat, then linear decay to a twentieth over the second half."""
    return min(1.0, (step + 1) / warmup) * max(0.05, min(1.0, 2 * (1 - step / steps)))


def _optimizers(model: torch.nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon on the matrices, AdamW on the rest: at equal steps it halves the loss of AdamW alone on so short a run."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def learn_to_see(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    config: PerceptionConfig,
    progress: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
    kept: Path | None = None,
) -> None:
    """Train ``model`` in place for ``config.steps`` steps; ``progress`` is called after each with loss and token accuracy.

    Every :data:`SAVE_STEPS` steps all that the rest depends on is written to the file ``kept``, and read from there where it
    exists: a training that was killed goes on as it would have.
    """
    torch.manual_seed(config.seed)
    rng = random.Random(f"perception {config.seed}")
    optimizers = _optimizers(model, config.learning_rate)
    schedules = [LambdaLR(o, lambda step: learning_rate_scale(step, config.steps)) for o in optimizers]
    parts: list[Any] = [model, *optimizers, *schedules]
    first = _restore(kept, parts, rng) if kept and kept.exists() else 0
    model.train()
    stream = batches(config, FactBatcher(processor), rng)
    for step in range(first, config.steps):
        if kept and step > first and step % SAVE_STEPS == 0:
            _save(kept, parts, rng, step)
        metrics = _backward(model, next(stream))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        progress(step, metrics)
    model.eval()


def _save(path: Path, parts: Sequence[Any], rng: random.Random, step: int) -> None:
    partial = path.with_name(f"{path.name}.partial")
    state = {
        "parts": [part.state_dict() for part in parts],
        "rng": rng.getstate(),
        "torch": torch.get_rng_state(),
        "step": step,
    }
    torch.save(state, partial)
    partial.replace(path)


def _restore(path: Path, parts: Sequence[Any], rng: random.Random) -> int:
    """Return the number of steps that were done."""
    state = torch.load(path, weights_only=True)
    for part, values in zip(parts, state["parts"], strict=True):
        part.load_state_dict(values)
    rng.setstate(state["rng"])
    torch.set_rng_state(state["torch"])
    return int(state["step"])


def _backward(model: Qwen2_5_VLForConditionalGeneration, parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Accumulate the gradient of the mean loss over all target tokens of a batch; return that loss and the token accuracy."""
    total = sum(int((part["labels"] != IGNORE).sum()) for part in parts)
    loss_sum = num_hits = 0.0
    for part in parts:
        targets = part.pop("labels")[:, 1:]
        is_target = targets != IGNORE
        # Only where something is to be learnt is anything predicted: a quarter of the positions.
        logits = model.lm_head(model.model(**part).last_hidden_state[:, :-1][is_target])
        loss = cross_entropy(logits, targets[is_target], reduction="sum") / total
        loss.backward()
        loss_sum += loss.item()
        num_hits += (logits.argmax(-1) == targets[is_target]).sum().item()
    return {"loss": loss_sum, "token_accuracy": num_hits / total}
