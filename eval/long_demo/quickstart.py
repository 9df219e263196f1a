"""The long demonstration up to its cold start: `python -m eval.long_demo.quickstart --out runs/long --seed 0`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from eval.long_demo.build import FOLDER
from rewardlab.demo.quickstart import open_quickstart

BUILD = ("python", "-m", "eval.long_demo.build")
SFT_REPORT = Path("bench", "sft", "report.json")


def long_quickstart(out: Path, configs: Path = FOLDER, seed: int = 0) -> None:
    """Run every stage that is not done: pairs, base model, teacher, distillation, SFT and its benchmark."""
    run, stages = open_quickstart(out, configs, seed, build=BUILD, pipeline=configs / "pipeline.yaml")
    run.run(list(stages.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/long"))
    parser.add_argument("--configs", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    long_quickstart(options.out, options.configs, options.seed)
    report = json.loads((options.out / SFT_REPORT).read_text(encoding="utf-8"))
    print(json.dumps(report, indent=1)[:200])


if __name__ == "__main__":
    main()
