"""The judge that travels with the package: trained by the quickstart's stages, each on one thread, and saved in half precision.

On one thread every sum is taken in one order: the same versions on the same kind of CPU give the same weights, bit for bit.
Its card says what it is, what it scores, and what its weights were made of.
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewardlab.config import find_configs, load_yaml
from rewardlab.data.files import sha256_of, write_atomic
from rewardlab.demo.build import WEIGHTS
from rewardlab.demo.quickstart import open_quickstart
from rewardlab.demo.summary import Accuracy, Control, StageSummary, read_stage
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.checkpoints import CARD, versions
from rewardlab.pipelines.runner import Pipeline, Stage

RECORD, README = "card.json", "README.md"
RECIPE = ("demo", "distill", "sft", "rl")  # configs of its stages


def train_judge(out: Path, configs: str | Path, seed: int) -> Path:
    """Run every stage that ``out`` does not hold; return ``out/judge``: weights in half precision, with their card."""
    run, stages = open_quickstart(out, configs, seed, from_scratch=True, processes=1)
    run.run([stages[name] for name in ("pairs", "base model", "teacher and checker", "distill", "sft", "rl")])
    judge = save_in_half_precision(out / "rl" / "final", out / "judge")
    line = stages["bench-rl"].line.replace(str(out / "rl" / "final"), str(judge)).replace("bench/rl", "bench/judge")
    bench = stages["bench-rl"].config.model_copy(update={"result": "bench/judge/report.html"})
    run.run([Stage("bench-judge", tuple(shlex.split(line)), bench)])
    write_judge_card(run, judge, find_configs(configs), seed)
    return judge


def save_in_half_precision(checkpoint: Path, out: Path) -> Path:
    """Write a checkpoint with its weights rounded to float16, once, without files that only training needs; return ``out``."""
    import torch
    from safetensors.torch import load_file, save_file

    if out.exists():
        return out
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(checkpoint, partial, ignore=shutil.ignore_patterns(WEIGHTS, "training_args.bin"))
    weights = {name: tensor.to(torch.float16) for name, tensor in load_file(checkpoint / WEIGHTS).items()}
    save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
    (partial / WEIGHTS).chmod(0o644)
    _rewrite(partial / "config.json", _with_half_dtype)
    _rewrite(partial / CARD, lambda card: {name: value for name, value in card.items() if name != "base"})  # a path of here
    partial.rename(out)
    return out


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    write_atomic(path, json.dumps(change(json.loads(path.read_text(encoding="utf-8"))), indent=1) + "\n")


def _with_half_dtype(config: dict[str, Any]) -> dict[str, Any]:
    """Return a model's config, and those within it, with float16 for the type of its weights."""
    return {
        name: _with_half_dtype(value) if isinstance(value, dict) else "float16" if name == "dtype" else value
        for name, value in config.items()
    }


def write_judge_card(run: Pipeline, judge: Path, configs: Path, seed: int) -> None:
    """Write ``card.json`` and ``README.md`` beside the weights, from what the run's files say."""
    card = {
        "command": "rewardlab demo train" + (f" --seed {seed}" if seed else ""),
        "commit": run.commit,
        "seed": seed,
        "sha256": sha256_of(judge / WEIGHTS),
        "parameters": count_parameters(judge / WEIGHTS),
        "licence": "Apache-2.0",
        "versions": versions(),
        "cpu": cpu_kind(),
        "recipe": {name: load_yaml(configs / f"{name}.yaml") for name in RECIPE},
        "cpu_seconds": {name: round(s, 1) for name, s in run.cpu_seconds.items()},
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

It knows 56x56 pictures of one to four drawn shapes and of two scanned digits, and eleven kinds of questions about them. Of
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
