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
from rewardlab.demo.difficulties import DIFFICULTIES, STANDARD
from rewardlab.demo.facts import facts_of
from rewardlab.demo.judgments import Truth, grounded_judgment, shallow_judgment
from rewardlab.demo.pairs import make_pairs, pairs_of_split, write_truths
from rewardlab.demo.splits import Split
from rewardlab.errors import ConfigError
from rewardlab.prompts import load_template, render
from rewardlab.reporting.progress import bar
from rewardlab.types import PreferencePair

TRAIN, TEST, VALIDATION, UNLIKE = (f"{split}.parquet" for split in Split)
TRUTHS, BASE, SETTINGS = "truths.jsonl", "base", "demo.json"


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demonstration and of its base model; ``base_steps`` of perception make the base model see.

    ``difficulty`` is "standard" or "hard". Only the hard one has validation pairs, for choosing settings without the test's,
    and pairs unlike all others, for how far a judge carries.
    """

    num_train: int = 6000
    num_test: int = 1000
    hidden: int = 96
    layers: int = 4
    vocab_size: int = 900
    base_steps: int = 700
    seed: int = 0
    difficulty: str = STANDARD
    num_validation: int = 0
    num_unlike: int = 0

    @property
    def num_of_split(self) -> dict[Split, int]:
        numbers = (self.num_train, self.num_test, self.num_validation, self.num_unlike)
        return dict(zip(Split, numbers, strict=True))

    @staticmethod
    def load(path: str | Path, **overrides: int | None) -> DemoConfig:
        values = load_yaml(path) | {name: value for name, value in overrides.items() if value is not None}
        try:
            config = DemoConfig(**values)
        except TypeError as error:
            raise ConfigError(f"{path}: {error}; its settings are {', '.join(DemoConfig.__dataclass_fields__)}") from error
        if config.difficulty not in DIFFICULTIES:
            raise ConfigError(f"{path}: difficulty {config.difficulty!r} is none of {', '.join(DIFFICULTIES)}")
        for split, num in config.num_of_split.items():
            if num and split not in DIFFICULTIES[config.difficulty].splits:
                raise ConfigError(f"{path}: the {config.difficulty} difficulty has no {split} pairs; leave num_{split} out")
        return config


def build_pairs(out: Path, config: DemoConfig) -> None:
    """Write the train and held-out pairs and their truths, once. Raise ConfigError if ``out`` holds another demonstration."""
    settings_file = out / SETTINGS
    if settings_file.exists():
        settings = asdict(DemoConfig()) | json.loads(settings_file.read_text(encoding="utf-8"))
        if settings != asdict(config):
            names = sorted(name for name, value in asdict(config).items() if settings.get(name) != value)
            raise ConfigError(f"{out}: holds another demonstration, which differs in {', '.join(names)}; use another --out")
        return
    truths: list[Truth] = []
    for split, num in config.num_of_split.items():
        if num:
            pairs, known = pairs_of_split(num, split, seed=config.seed, difficulty=config.difficulty)
            write_parquet(pairs, out / f"{split}.parquet")
            truths += known
    write_truths(truths, out / TRUTHS)
    write_atomic(settings_file, json.dumps(asdict(config), indent=1) + "\n")


def corpus(pairs: list[PreferencePair], truths: list[Truth], rng: random.Random, difficulty: str = STANDARD) -> Iterator[str]:
    """Yield text for the tokenizer: prompts, judgments and facts of training pairs."""
    template, kind = load_template("plain"), DIFFICULTIES[difficulty]
    for pair, truth in zip(pairs, truths, strict=True):
        yield render(template, pair.question, *pair.responses)
        yield grounded_judgment(truth, pair.responses)[0]
        yield shallow_judgment(rng, contradict=0.0)[0]
        picture = kind.view(rng, 0.3)
        kind.render(picture, rng)  # for the random numbers that it takes: without it the same seed gives another tokenizer
        yield " ".join(prompt + continuation for prompt, continuation in facts_of(rng, picture, 6, kind.facts))
    yield from ("user", "assistant", "system")


def build_base(out: Path, config: DemoConfig) -> Path:
    """Make the tiny base model, once: tokenizer, random weights, perception stage. Return its checkpoint folder."""
    folder = out / BASE
    if (folder / "config.json").exists():
        return folder
    from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
    from rewardlab.demo.perception import PerceptionConfig, learn_to_see

    pairs, truths = make_pairs(1500, seed=config.seed, held_out=False, difficulty=config.difficulty)
    texts = corpus(pairs, truths, random.Random(config.seed), config.difficulty)
    tokenizer = train_tokenizer(texts, config.vocab_size)
    processor = build_processor(tokenizer)
    model = build_model(tokenizer, hidden=config.hidden, layers=config.layers, seed=config.seed)
    kept, num_done = out / f"{BASE}.training.pt", 0
    with bar("base model learns to see", config.base_steps) as advance:

        def progress(step: int, metrics: dict[str, float]) -> None:
            nonlocal num_done  # of a training that goes on, the steps before it are done at once
            advance(step + 1 - num_done, note=f"loss {metrics['loss']:.2f}" if step % 10 == 0 else None)
            num_done = step + 1

        perception = PerceptionConfig(config.base_steps, seed=config.seed, difficulty=config.difficulty)
        learn_to_see(model, processor, perception, progress, kept)
    partial = out / f"{BASE}.partial"
    save_model(partial, model, processor)
    partial.rename(folder)
    kept.unlink(missing_ok=True)
    return folder
