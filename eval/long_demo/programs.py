"""A policy that writes the programs that sheets show, rewarded by their tests alone: ``python -m eval.long_demo.programs``

A picture shows five lines, each a sign and a handwritten digit. The policy answers with a Python function of five lines; the
reward is 1 if it returns what the sheet's program does, for each of several starts (category ``code``), else 0. There is no
judge. Base model, cold start (the right program of each picture, for too few steps) and RL take minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from eval.long_demo.sheets import LABELS, TASKS, Line, Sheet, random_sheet, render_sheet, with_error
from eval.studies.study import make_once
from eval.studies.tables import cell, mean_of
from rewardlab.config import PolicyConfig, SFTConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import write_parquet
from rewardlab.demo.build import DemoConfig, build_base
from rewardlab.demo.facts import Fact
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import TEST_SPLIT, TRAIN_SPLIT, DemoDifficulty, Drawing, pairs_of_split
from rewardlab.demo.tasks import ContrastPair, Picture
from rewardlab.models.checkpoints import commit
from rewardlab.models.loading import load_model
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.verifiable.extraction import Contract
from rewardlab.rewards.verifiable.hybrid import all_verifiers
from rewardlab.rewards.verified import VerifiedReward
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy import train_policy
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import FinishReason, Order, PreferencePair

COMMAND = "python -m eval.long_demo.programs"
QUESTION = "Write the program."
NUM_LINES = 5
STARTS = (0, 1, 4, 7)
OPENING = "```python\ndef run(x):\n"


def code_of(line: Line) -> str:
    """Return a line as Python: "c = b + 4 * (b % 2)" for a sign "odd"; the lines before it have set ``b``."""
    before = LABELS[line.cell - 1] if line.cell else "x"
    term = {"add": f"+ {line.digit}", "take": f"- {line.digit}", "odd": f"+ {line.digit} * ({before} % 2)"}[line.sign]
    return f"{line.label} = {before} {term}"


def program_of(sheet: Sheet) -> str:
    """Return a sheet's program, fenced."""
    lines = "\n".join(f"    {code_of(line)}" for line in sheet.lines)
    return f"{OPENING}{lines}\n    return {sheet.lines[-1].label} % 10\n```"


def tests_of(sheet: Sheet) -> str:
    """Return assertions of what the sheet's program returns, by the sheet's own steps and not by Python's."""
    asserts = []
    for start in STARTS:
        state: tuple[int, ...] = (start,)
        for line in sheet.lines:
            state = TASKS["program"].step(state, line)
        asserts.append(f"assert run({start}) == {state[0]}")
    return "\n".join(asserts)


def _draw(rng: random.Random, split: str) -> Drawing:
    held_out = split != TRAIN_SPLIT
    while True:
        sheet = random_sheet(rng, "program", range(NUM_LINES), held_out=held_out)
        other = with_error(rng, sheet, rng.choice(["early", "late"]), held_out=held_out)
        if other is not None and tests_of(sheet) != tests_of(other):
            break
    pictures: tuple[Picture, Picture] = (sheet, other)
    programs = (program_of(sheet), program_of(other))
    contrast = ContrastPair(QUESTION, programs, pictures, (sheet.text, other.text), (("", ""), ("", "")))
    return Drawing(contrast, "sheets", "program", "code", 1)


def _render(picture: Picture, rng: random.Random) -> Image.Image:
    assert isinstance(picture, Sheet)
    return render_sheet(picture, rng)


def _facts(rng: random.Random, picture: Picture) -> list[Fact]:
    """Return single lines in random order, or the whole program."""
    assert isinstance(picture, Sheet)
    if rng.random() < 0.5:
        return [(line.label, code_of(line)[1:] + "\n") for line in rng.sample(picture.lines, NUM_LINES)]
    ends = [f"\n    return {picture.lines[-1].label} % 10\n```" if n == NUM_LINES - 1 else "\n    " for n in range(NUM_LINES)]
    facts = [(line.label, code_of(line)[1:] + end) for line, end in zip(picture.lines, ends, strict=True)]
    return [(f"{QUESTION}\n{OPENING}    ", ""), *facts]


def _words(picture: Picture) -> list[list[str]]:
    assert isinstance(picture, Sheet)
    words: list[list[str]] = [[] for _ in LABELS]
    for line in picture.lines:
        words[line.cell] = [str(line.digit), line.label, line.sign]
    return words


def _view(rng: random.Random, share_digits: float) -> Picture:
    return random_sheet(rng, "program", range(NUM_LINES), held_out=False)


def _samples(rng: random.Random, truth: Truth, responses: tuple[str, str]) -> list[str]:
    return [truth.right, "add take odd"]


PROGRAMS = DemoDifficulty(_draw, _render, _view, _facts, lambda seed, split: f"programs {seed} {split}", _samples, _words)


@dataclass(frozen=True)
class ProgramConfig(DemoConfig):
    """Sizes of the world and lengths of its trainings."""

    difficulty: ClassVar[DemoDifficulty] = PROGRAMS
    num_train: int = 3000
    num_test: int = 400
    vocab_size: int = 500
    base_steps: int = 400
    naming_steps: int = 150
    start_steps: int = 60
    steps: int = 60


def code_pairs(config: ProgramConfig, split: str) -> list[PreferencePair]:
    """Return questions with their tests as ``truth``, and the right program as the judgment that a cold start learns."""
    pairs, truths = pairs_of_split(config.num_of_split[split], split, seed=config.seed, difficulty=PROGRAMS)
    return [
        replace(pair, truth=tests_of(Sheet.parse(truth.fact)), judgment=truth.right, order=Order.GIVEN)
        for pair, truth in zip(pairs, truths, strict=True)
    ]


def start_config(config: ProgramConfig, base: Path) -> SFTConfig:
    """Return the config of the cold start."""
    return SFTConfig(
        model=str(base), template="answer", learning_rate=1e-3, warmup_steps=10, max_steps=config.start_steps, batch_size=32,
        micro_batch_size=32, seed=config.seed, adam_beta2=0.98, gradient_checkpointing=False,
    )  # fmt: skip


def policy_config(config: ProgramConfig, start: Path) -> PolicyConfig:
    """Return the config of RL by rules alone."""
    return PolicyConfig(
        model=str(start), judge=None, verified=True, thinking=False, seed=config.seed, advantage="grpo", group_size=8,
        learning_rate=3e-4, warmup_steps=3, max_steps=config.steps, rollout_batch_size=128, batch_size=128,
        micro_batch_size=64, max_completion_length=160, kl_coef=0.0, adam_beta2=0.98, gradient_checkpointing=False,
    )  # fmt: skip


def pass_rates(checkpoint: Path, pairs: Sequence[PreferencePair], config: ProgramConfig) -> dict[str, float]:
    """Return the fraction of programs that pass their tests, one sampled and one greedy for each question, and the fraction
    of questions of which one of eight sampled programs passes."""
    sampler = HFSampler(*load_model(str(checkpoint), device="cpu"), batch_size=512)
    prompts = [build_messages(pair, order=Order.GIVEN, template=load_template("answer")) for pair in pairs]
    reward = VerifiedReward(all_verifiers(), None, contract=Contract.BOXED, thinking=False)
    passed: dict[str, list[list[bool]]] = {}
    for name, temperature, number in (("sampled", 1.0, 8), ("greedy", 0.0, 1)):
        rows = sampler.sample(prompts, SamplingParams(number, temperature, max_tokens=160, seed=config.seed))
        texts = [answer.text if answer.finish is FinishReason.STOP else "" for row in rows for answer in row]
        paid, _ = reward([pair for pair in pairs for _ in range(number)], texts, [()] * len(texts), 0)
        passed[name] = [[score == 1 for score in paid[n : n + number]] for n in range(0, len(paid), number)]
    mean = {name: sum(map(sum, rows)) / sum(map(len, rows)) for name, rows in passed.items()}
    return {**mean, "any_of_8": sum(map(any, passed["sampled"])) / len(pairs)}


def run(out: Path, config: ProgramConfig) -> dict[str, Any]:
    """Train base, start and policy of a seed, each once; return their pass rates on held-out pictures."""
    train, test = (code_pairs(config, split) for split in (TRAIN_SPLIT, TEST_SPLIT))
    write_parquet(train, out / "train.parquet")
    base = build_base(out, config)
    if not is_finished(out / "start"):
        train_sft(train, start_config(config, base), out / "start")
    start = out / "start" / FINAL
    before = make_once(out / "before.json", lambda: pass_rates(start, test, config))
    if not is_finished(out / "policy"):
        train_policy(train, policy_config(config, start), out / "policy")
    after = make_once(out / "after.json", lambda: pass_rates(out / "policy" / FINAL, test, config))
    return {"seed": config.seed, "before": before, "after": after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/programs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    rows = [run(options.out / str(seed), ProgramConfig(seed=seed)) for seed in options.seeds]
    write_atomic(
        options.out / "result.json", json.dumps({"command": COMMAND, "commit": commit(), "seeds": rows}, indent=1) + "\n"
    )
    for name in rows[0]["before"]:
        before, after = ([row[when][name] for row in rows] for when in ("before", "after"))
        gain = mean_of([b - a for a, b in zip(before, after, strict=True)])
        print(
            f"{name}: {cell(mean_of(before), 100, 1)} before, {cell(mean_of(after), 100, 1)} after, gain {cell(gain, 100, 1)}"
        )


if __name__ == "__main__":
    main()
