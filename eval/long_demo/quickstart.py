"""The long demonstration up to its cold start: `python -m eval.long_demo.quickstart --out runs/long --seed 0`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from eval.long_demo.build import FOLDER
from rewardlab.demo.quickstart import open_quickstart

BUILD = ("python", "-m", "eval.long_demo.build")
SFT_REPORT = Path("bench", "sft", "report.json")


def long_quickstart(out: Path, configs: Path = FOLDER, seed: int = 0) -> None:
    """Run every stage that is not done: pairs, base model, teacher, distillation, SFT and its benchmark."""
    run, stages = open_quickstart(out, configs, seed, build=BUILD, pipeline=configs / "pipeline.yaml")
    run.run(list(stages.values()))


def figures(report: dict[str, Any]) -> list[str]:
    """Return what the SFT judge scores, a line each, in percent with 95 % intervals over pairs."""
    curve = {row["k"]: row for row in report["k_curve"]}
    rows = {"one sampled vote": curve[1], f"majority of {max(curve)}": curve[max(curve)]} | report["controls"]
    lines = [f"{name}: {_percent(row)}" for name, row in rows.items()]
    lines.append(f"any of {max(curve)}: {100 * curve[max(curve)]['any_correct']:.1f}")
    return [*lines, f"tokens of an answer: {report['tokens_per_vote']:.0f}", f"invalid: {100 * report['invalid_rate']:.1f}"]


def _percent(row: dict[str, Any]) -> str:
    value = row["accuracy"]["micro"] if isinstance(row["accuracy"], dict) else row["accuracy"]
    low, high = row.get("interval") or (value, value)
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/long"))
    parser.add_argument("--configs", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    long_quickstart(options.out, options.configs, options.seed)
    print("\n".join(figures(json.loads((options.out / SFT_REPORT).read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
