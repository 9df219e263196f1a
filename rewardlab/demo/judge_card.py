"""The card of the judge that travels with the package: what it is, what it scores, and what its weights were made of."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewardlab.config import load_yaml
from rewardlab.data.files import sha256_of, write_atomic
from rewardlab.demo.difficulties import DIFFICULTIES, STANDARD
from rewardlab.demo.pipeline import RUN, Pipeline
from rewardlab.demo.summary import Accuracy, Control, StageSummary, read_stage
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.checkpoints import versions

WEIGHTS, RECORD, README = "model.safetensors", "card.json", "README.md"
RECIPE = ("demo", "distill", "sft", "rl")  # configs of its stages


def write_judge_card(run: Pipeline, judge: Path) -> None:
    """Write ``card.json`` and ``README.md`` beside the weights, from what the run's files say."""
    record = json.loads((run.out / RUN).read_text(encoding="utf-8"))
    card = {
        "command": "rewardlab demo train" + (f" --seed {run.seed}" if run.seed else ""),
        "commit": record["commit"],
        "seed": run.seed,
        "sha256": sha256_of(judge / WEIGHTS),
        "parameters": count_parameters(judge / WEIGHTS),
        "licence": "Apache-2.0",
        "versions": versions(),
        "cpu": cpu_kind(),
        "recipe": {name: load_yaml(run.configs / f"{name}.yaml") for name in RECIPE},
        "cpu_seconds": record["cpu_seconds"],
        "figures": asdict(read_stage(run.out, "judge")),
    }
    write_atomic(judge / RECORD, json.dumps(card, indent=1, allow_nan=False) + "\n")
    write_atomic(judge / README, readme(card, read_stage(run.out, "judge")))


def count_parameters(weights: Path) -> int:
    """Return how many numbers a safetensors file holds."""
    from safetensors import safe_open

    total = 0
    with safe_open(weights, "numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118  (no mapping)
            size = 1
            for length in tensors.get_slice(name).get_shape():
                size *= length
            total += size
    return total


def cpu_kind() -> str:
    """Return what the order of sums depends on: the machine's architecture and the instructions that torch uses on it."""
    import torch

    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def is_shipped(judge: Path) -> bool:
    """Return whether a judge's weights are those that travel with the package, bit for bit."""
    shipped = DEMO_JUDGE / WEIGHTS
    return shipped.exists() and sha256_of(judge / WEIGHTS) == sha256_of(shipped)


def _cell(value: Accuracy | Control | None) -> str:
    if value is None:
        return "–"
    low, high = value.interval
    return f"{100 * value.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def readme(card: dict[str, Any], figures: StageSummary) -> str:
    """Return the card for people, in Markdown."""
    rows = (
        ("one greedy answer", _cell(figures.greedy)),
        ("one sampled answer", _cell(figures.sampled_at_1)),
        ("majority of 5 sampled answers", _cell(figures.votes.get("5"))),
        ("majority of 15 sampled answers", _cell(figures.votes.get("15"))),
        ("one greedy answer, blank image (50 is chance)", _cell(figures.blank)),
        ("one greedy answer, another pair's image", _cell(figures.other)),
        ("invalid, greedy", _share(figures.greedy.invalid_rate)),
        ("invalid, sampled", _share(figures.invalid_rate)),
        ("same winner in both orders, greedy", _share(figures.swap_consistency_greedy)),
        ("right verdicts whose reasoning agrees", _share(figures.reasoning["agrees"])),
    )
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    used = ", ".join(
        f"{name} {card['versions'][name]}" for name in ("torch", "transformers", "trl") if name in card["versions"]
    )
    return f"""---
license: apache-2.0
pipeline_tag: image-text-to-text
---
# The demo judge

A pairwise judge: it looks at a picture, reads a question and two answers, reasons, and says which answer is better. It is a
real Qwen2.5-VL of {card["parameters"]:,} parameters in float16, trained from random numbers by `{card["command"]}`:
it learned to see, was cold-started on a scripted teacher's judgments, and trained with StableReinforce. `--judge demo` is its
name.

It knows {DIFFICULTIES[card["recipe"]["demo"].get("difficulty", STANDARD)].pictures}. Of
anything else (photographs, other questions, longer answers) its verdicts mean nothing, however sure they read. It shows that
everything works; it is not a reward model for other work.

{figures.num_pairs:,} held-out pairs of the demonstration, each in both orders; percent, 95 % intervals over pairs; no scene
and no scan of them was trained on:

| | percent |
|---|---|
{table}

Weights: `{WEIGHTS}`, SHA-256 `{card["sha256"]}`; commit {card["commit"]}, seed {card["seed"]}.
`{card["command"]}` makes the same file, bit for bit, with {used}
on one thread of the same kind of CPU ({card["cpu"]}). Other versions or instructions add in another order: another judge.
`{RECORD}` holds the recipe and all figures.

Licence: {card["licence"]}. The scans are the digits of scikit-learn's `load_digits` (UCI, Optical Recognition of Handwritten
Digits, CC BY 4.0).
"""
