"""Build the demonstration on disk: pairs, truths and the tiny base model. Each piece is made once and kept after that."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from rewardlab.config import load_yaml
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import write_parquet
from rewardlab.demo.facts import facts_of
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import STANDARD, TEST_SPLIT, TRAIN_SPLIT, DemoDifficulty, pairs_of_split, write_truths
from rewardlab.errors import ConfigError
from rewardlab.prompts import load_template, render
from rewardlab.reporting.progress import bar
from rewardlab.types import PreferencePair

TRAIN, TEST = f"{TRAIN_SPLIT}.parquet", f"{TEST_SPLIT}.parquet"
TRUTHS, BASE, SETTINGS = "truths.jsonl", "base", "demo.json"
WEIGHTS, PACKED_WEIGHTS = "model.safetensors", "model.int8.safetensors"
PACKAGED_BASE = Path(__file__).parent / "base"  # trained with seed 0
PACKAGED = {"hidden": 96, "layers": 4, "vocab_size": 900, "base_steps": 1000}


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demonstration and of its base model; ``base_steps`` of perception make the base model see, the first
    ``naming_steps`` of them by naming what each visual token shows."""

    difficulty: ClassVar[DemoDifficulty] = STANDARD
    num_train: int = 6000
    num_test: int = 1000
    hidden: int = 96
    layers: int = 4
    vocab_size: int = 900
    base_steps: int = 700
    naming_steps: int = 0
    seed: int = 0

    @property
    def num_of_split(self) -> dict[str, int]:
        return {TRAIN_SPLIT: self.num_train, TEST_SPLIT: self.num_test}

    @classmethod
    def load(cls, path: str | Path, **overrides: int | None) -> Self:
        values = load_yaml(path) | {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{path}: {error}; valid settings are {', '.join(cls.__dataclass_fields__)}") from error


def build_pairs(out: Path, config: DemoConfig) -> None:
    """Write the pairs of every split and their truths, once. Raise ConfigError if ``out`` holds another demonstration."""
    settings_file = out / SETTINGS
    if settings_file.exists():
        # A folder of an earlier version lacks later keys.
        defaults = {field.name: field.default for field in fields(config) if field.default is not MISSING}
        settings = defaults | json.loads(settings_file.read_text(encoding="utf-8"))
        if settings != asdict(config):
            names = sorted(name for name, value in asdict(config).items() if settings.get(name) != value)
            raise ConfigError(f"{out}: holds a demonstration that differs in  {', '.join(names)}; use another --out")
        return
    truths: list[Truth] = []
    for split, num in config.num_of_split.items():
        if num:
            pairs, known = pairs_of_split(num, split, seed=config.seed, difficulty=config.difficulty)
            write_parquet(pairs, out / f"{split}.parquet")
            truths += known
    write_truths(truths, out / TRUTHS)
    write_atomic(settings_file, json.dumps(asdict(config), indent=1) + "\n")


def corpus(
    pairs: list[PreferencePair], truths: list[Truth], rng: random.Random, difficulty: DemoDifficulty = STANDARD
) -> Iterator[str]:
    """Yield text for the tokenizer: prompts, judgments and facts of training pairs."""
    template = load_template("plain")
    for pair, truth in zip(pairs, truths, strict=True):
        yield render(template, pair.question, *pair.responses)
        yield from difficulty.judgments(rng, truth, pair.responses)
        picture = difficulty.view(rng, 0.3)
        difficulty.render(picture, rng)  # for the random numbers that it takes: without it the seed gives another tokenizer
        yield " ".join(prompt + continuation for prompt, continuation in facts_of(rng, picture, 6, difficulty.facts))
    yield from ("user", "assistant", "system")


def build_base(out: Path, config: DemoConfig, *, from_scratch: bool = False) -> Path:
    """Make the tiny base model, once, and return its checkpoint folder: the one that travels with the package if its sizes are
    the config's, unless ``from_scratch``; else tokenizer, random weights and perception stage, by the config's seed."""
    folder, partial = out / BASE, out / f"{BASE}.partial"
    if (folder / "config.json").exists():
        return folder
    if config.naming_steps and config.difficulty.words is None:
        raise ConfigError("naming_steps: this demonstration does not say what each visual token shows; set it to 0")
    is_packaged = config.difficulty is STANDARD and all(getattr(config, name) == size for name, size in PACKAGED.items())
    if is_packaged and not from_scratch:
        shutil.rmtree(partial, ignore_errors=True)
        unpack_base(PACKAGED_BASE, partial)
        partial.rename(folder)
        return folder
    from rewardlab.demo.base_model import (
        PerceptionConfig,
        build_model,
        build_processor,
        learn_to_see,
        save_model,
        train_tokenizer,
    )

    pairs, truths = pairs_of_split(1500, TRAIN_SPLIT, seed=config.seed, difficulty=config.difficulty)
    texts = corpus(pairs, truths, random.Random(config.seed), config.difficulty)
    tokenizer = train_tokenizer(texts, config.vocab_size)
    processor = build_processor(tokenizer)
    model = build_model(tokenizer, hidden=config.hidden, layers=config.layers, seed=config.seed)
    kept, num_done = out / f"{BASE}.training.pt", 0
    with bar("base model learns to see", config.base_steps) as advance:

        def progress(step: int, metrics: dict[str, float]) -> None:
            nonlocal num_done  # the first call of a resumed training counts the steps before it
            advance(step + 1 - num_done, note=f"loss {metrics['loss']:.2f}" if step % 10 == 0 else None)
            num_done = step + 1

        perception = PerceptionConfig(
            config.base_steps, naming_steps=config.naming_steps, seed=config.seed, difficulty=config.difficulty
        )
        learn_to_see(model, processor, perception, progress, kept)
    save_model(partial, model, processor)
    partial.rename(folder)
    kept.unlink(missing_ok=True)
    return folder


def pack_base(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint with its weight matrices in 8 bits: whole numbers from -127 to 127 and a scale for each row."""
    from safetensors.numpy import load_file, save_file

    packed = {}
    for name, weights in load_file(checkpoint / WEIGHTS).items():
        packed[name] = weights
        if weights.ndim > 1:
            scales = np.abs(rows := weights.reshape(len(weights), -1)).max(axis=1, keepdims=True) / np.float32(127)
            packed[name] = np.round(rows / scales).astype(np.int8).reshape(weights.shape)
            packed[f"{name}.scales"] = scales[:, 0]
    shutil.copytree(checkpoint, out, ignore=shutil.ignore_patterns(WEIGHTS))
    save_file(packed, out / PACKED_WEIGHTS)


def unpack_base(packed: Path, out: Path) -> None:
    """Write the checkpoint that :func:`pack_base` has packed, with weights in float32."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(packed / PACKED_WEIGHTS)
    scales = {name.removesuffix(".scales"): tensors.pop(name) for name in list(tensors) if name.endswith(".scales")}
    for name, each in scales.items():
        rows = tensors[name].reshape(len(each), -1) * each[:, None]
        tensors[name] = rows.reshape(tensors[name].shape)
    shutil.copytree(packed, out, ignore=shutil.ignore_patterns(PACKED_WEIGHTS))
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
