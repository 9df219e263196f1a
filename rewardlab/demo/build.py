"""Build the demonstration on disk: pairs, truths and the tiny base model. Each piece is made once and reused after that."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rewardlab.config import load_yaml
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import write_parquet
from rewardlab.demo.facts import facts_of
from rewardlab.demo.judgments import Truth, grounded_judgment, shallow_judgment
from rewardlab.demo.pairs import make_pairs, write_truths
from rewardlab.errors import ConfigError
from rewardlab.prompts import load_template, render
from rewardlab.reporting.progress import bar
from rewardlab.types import PreferencePair

TRAIN, TEST, TRUTHS, BASE, SETTINGS = "train.parquet", "test.parquet", "truths.jsonl", "base", "demo.json"


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demonstration and of its base model; ``base_steps`` of perception make the base model see."""

    num_train: int = 6000
    num_test: int = 1000
    hidden: int = 96
    layers: int = 4
    vocab_size: int = 900
    base_steps: int = 700
    seed: int = 0

    @staticmethod
    def load(path: str | Path, **overrides: int | None) -> DemoConfig:
        values = load_yaml(path) | {name: value for name, value in overrides.items() if value is not None}
        try:
            return DemoConfig(**values)
        except TypeError as error:
            raise ConfigError(f"{path}: {error}; its settings are {', '.join(DemoConfig.__dataclass_fields__)}") from error


def build_pairs(out: Path, config: DemoConfig) -> None:
    """Write the train and held-out pairs and their truths, once. Raise ConfigError if ``out`` holds another demonstration."""
    settings_file = out / SETTINGS
    if settings_file.exists():
        settings = json.loads(settings_file.read_text(encoding="utf-8"))
        if settings != asdict(config):
            names = sorted(name for name, value in asdict(config).items() if settings.get(name) != value)
            raise ConfigError(f"{out}: holds another demonstration, which differs in {', '.join(names)}; use another --out")
        return
    train, train_truths = make_pairs(config.num_train, seed=config.seed, held_out=False)
    test, test_truths = make_pairs(config.num_test, seed=config.seed, held_out=True)
    write_parquet(train, out / TRAIN)
    write_parquet(test, out / TEST)
    write_truths([*train_truths, *test_truths], out / TRUTHS)
    write_atomic(settings_file, json.dumps(asdict(config), indent=1) + "\n")


def corpus(pairs: list[PreferencePair], truths: list[Truth], rng: random.Random) -> Iterator[str]:
    """Yield text for the tokenizer: prompts, judgments and facts of training pairs."""
    from rewardlab.demo.perception import draw_picture

    template = load_template("plain")
    for pair, truth in zip(pairs, truths, strict=True):
        yield render(template, pair.question, *pair.responses)
        yield grounded_judgment(truth, pair.responses)[0]
        yield shallow_judgment(rng, contradict=0.0)[0]
        yield " ".join(prompt + continuation for prompt, continuation in facts_of(rng, draw_picture(rng, 0.3)[0], 6))
    yield from ("user", "assistant", "system")


def build_base(out: Path, config: DemoConfig) -> Path:
    """Make the tiny base model, once: tokenizer, random weights, perception stage. Return its checkpoint folder."""
    folder = out / BASE
    if (folder / "config.json").exists():
        return folder
    from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
    from rewardlab.demo.perception import PerceptionConfig, learn_to_see

    pairs, truths = make_pairs(1500, seed=config.seed, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(config.seed)), config.vocab_size)
    processor = build_processor(tokenizer)
    model = build_model(tokenizer, hidden=config.hidden, layers=config.layers, seed=config.seed)
    with bar("base model learns to see", config.base_steps) as advance:

        def progress(step: int, metrics: dict[str, float]) -> None:
            advance(note=f"loss {metrics['loss']:.2f}" if step % 10 == 0 else None)

        learn_to_see(model, processor, PerceptionConfig(config.base_steps, seed=config.seed), progress)
    partial = out / f"{BASE}.partial"
    save_model(partial, model, processor)
    partial.rename(folder)
    return folder
