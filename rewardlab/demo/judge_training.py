"""The judge that travels with the package: trained by the quickstart's stages, each on one thread, and saved in half precision.

On one thread every sum is taken in one order: the same versions on the same kind of CPU give the same weights, bit for bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.demo.judge_card import WEIGHTS, write_judge_card
from rewardlab.demo.pipeline import bench_stage, open_pipeline, remote_models, training_stages
from rewardlab.models.checkpoints import CARD

VOTES = 15


def train_judge(out: Path, configs: str | Path, seed: int) -> Path:
    """Run every stage that ``out`` does not hold; return ``out/judge``: weights in half precision, with their card."""
    run = open_pipeline(out, configs, seed, threads=1)
    with remote_models(run) as url:
        stages = training_stages(run, url)
        run.run(stages.base, stages.distill)
        run.run(stages.sft)
        run.run(stages.rl)
    judge = save_in_half_precision(out / "rl" / "final", out / "judge")
    run.run(bench_stage(run, "judge", judge, votes=VOTES))
    write_judge_card(run, judge)
    return judge


def save_in_half_precision(checkpoint: Path, out: Path) -> Path:
    """Write a checkpoint with its weights rounded to float16, once; return ``out``. What only training needs is left out."""
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
