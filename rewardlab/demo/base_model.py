"""The tiny base model: a real Qwen2.5-VL, built from a config, with a tokenizer trained on the spot, that learns to see.

750,000 parameters, the real classes for model, processor, image processor and tokenizer, saved as a checkpoint folder like
any other. Two departures from the defaults decide whether so narrow a model learns at all: fan-in initialisation (the
default standard deviation of 0.02 starves it) and tied embeddings.

Training stands in for what a hub checkpoint would bring. The model reads an image and short facts about it ("star:" ->
"cyan.") and is trained on the continuations alone. It never sees a pair, a response, a judgment or a held-out picture.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from rewardlab.demo.facts import Fact, facts_of
from rewardlab.demo.pairs import STANDARD, DemoDifficulty
from rewardlab.demo.tasks import Picture

IMAGE_PX = 56
IGNORE = -100
PARTS = 2  # of a batch
SAVE_STEPS = 250
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# As in Qwen3's vocabulary, a tag is one token, and not a special one: decoding keeps it.
TAG_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def train_tokenizer(corpus: Iterable[str], vocab_size: int) -> Qwen2Tokenizer:
    """Train a byte-level BPE in Qwen's form; a small corpus yields fewer merges than ``vocab_size`` asks for."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet))
    model = json.loads(bpe.to_str())["model"]
    options: dict[str, Any] = {
        "vocab": model["vocab"],
        "merges": [tuple(merge) for merge in model["merges"]],
        "unk_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": list(SPECIAL_TOKENS[1:]),
        "model_max_length": 32768,
    }
    tokenizer = Qwen2Tokenizer(**options)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAG_TOKENS])
    return tokenizer


def build_processor(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLProcessor:
    size = {"shortest_edge": IMAGE_PX * IMAGE_PX, "longest_edge": 4 * IMAGE_PX * IMAGE_PX}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: Qwen2Tokenizer, *, hidden: int, layers: int, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """Return a Qwen2.5-VL with random weights: ``layers`` text layers of width ``hidden`` (a multiple of 32), two of vision."""
    torch.manual_seed(seed)

    def token(text: str) -> int:
        return int(tokenizer.get_vocab()[text])

    head = hidden // 4
    sections = [head // 2 - 2 * (3 * head // 16), 3 * head // 16, 3 * head // 16]  # of M-RoPE, as 16:24:24 is of 128
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "pad_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "bos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
    }
    width = 16 * (3 * hidden // 64)  # a multiple of 16, so that its rotary halves pair up
    vision = {
        "depth": 2,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_heads": 4,
        "out_hidden_size": hidden,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    _fan_in_init(model)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        pad_token_id=token("<|endoftext|>"),
        eos_token_id=[token("<|im_end|>"), token("<|endoftext|>")],
    )
    return model


@torch.no_grad()
def _fan_in_init(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.dim() >= 2:
            std = 0.1 if "embed_tokens" in name else weight[0].numel() ** -0.5
            torch.nn.init.normal_(weight, std=std)


def save_model(folder: Path, model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


@dataclass(frozen=True)
class PerceptionConfig:
    """Steps of ``batch`` images with ``facts`` facts each; a share ``digits`` of the images are cards of real scans. The first
    ``naming_steps`` train the vision tower alone (:func:`_name_tokens`)."""

    steps: int
    naming_steps: int = 0
    batch: int = 32
    facts: int = 8
    digits: float = 0.3
    learning_rate: float = 3e-3
    seed: int = 0
    difficulty: DemoDifficulty = STANDARD


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
    difficulty = config.difficulty

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
    exists: a killed training resumes with the same result.
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
        metrics = _name_tokens(model, processor, config, rng) if step < config.naming_steps else _backward(model, next(stream))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        progress(step, metrics)
    model.eval()


def _name_tokens(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, config: PerceptionConfig, rng: random.Random
) -> dict[str, float]:
    """Accumulate the gradient for naming what each visual token shows: the likelihood of its words under the embeddings of the
    text model, which later finds it by the same words. Return the loss and the accuracy of the first words.

    It replaces the contrastive training of a hub checkpoint's vision tower: 500 digits a step, and no text to read.
    """
    difficulty = config.difficulty
    assert difficulty.words is not None
    pictures = [difficulty.view(rng, config.digits) for _ in range(config.batch)]
    images = [difficulty.render(picture, rng) for picture in pictures]
    inputs = processor.image_processor(images, return_tensors="pt")
    tokens = torch.cat(tuple(model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output))
    logprobs = model.lm_head(model.model.language_model.norm(tokens)).log_softmax(-1)
    labels = [words for picture in pictures for words in difficulty.words(picture)]
    first = [(n, words[0]) for n, words in enumerate(labels) if words]
    places, words = zip(*((n, word) for n, of in enumerate(labels) for word in of), strict=True)
    loss = -logprobs[list(places), _first_tokens(processor, words)].mean()
    loss.backward()
    vocabulary = _first_tokens(processor, sorted({word for _, word in first}))
    guesses = torch.tensor(vocabulary)[logprobs[[n for n, _ in first]][:, vocabulary].argmax(-1)]
    hits = guesses == torch.tensor(_first_tokens(processor, [word for _, word in first]))
    return {"loss": loss.item(), "token_accuracy": hits.float().mean().item()}


def _first_tokens(processor: Qwen2_5_VLProcessor, words: Sequence[str]) -> list[int]:
    return [int(processor.tokenizer(f" {word}")["input_ids"][0]) for word in words]


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
