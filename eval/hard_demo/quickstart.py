"""The quickstart on the hard demonstration: `python -m eval.hard_demo.quickstart --out runs/quickstart_hard`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from eval.hard_demo.build import FOLDER
from eval.hard_demo.grids import Split
from rewardlab.config.pipeline import StageConfig
from rewardlab.demo.quickstart import open_quickstart, quickstart
from rewardlab.pipelines.runner import fill_stages

BUILD = ("python", "-m", "eval.hard_demo.build")
UNLIKE = """rewardlab bench run pairs --data {out}/demo/unlike.parquet --judge hf:{out}/rl/final --votes 1
--controls greedy --seed {seed} template=plain max_tokens=64 batch_size=480 --out {out}/bench/unlike"""


def hard_quickstart(out: Path, configs: Path = FOLDER, seed: int = 0) -> None:
    """Run the quickstart, and benchmark its last judge on the pairs unlike all others, by category."""
    quickstart(out, configs, seed, build=BUILD)
    if not (out / "demo" / f"{Split.UNLIKE}.parquet").exists():
        return
    run, _ = open_quickstart(out, configs, seed, build=BUILD)
    stage = StageConfig(run=UNLIKE, result="bench/unlike/report.json", statuses=(0, 1))
    run.run(fill_stages({"bench-unlike": stage}, {"out": out, "seed": seed}))
    report = json.loads((out / "bench" / "unlike" / "report.json").read_text(encoding="utf-8"))
    for name, group in report["groups"].items():
        low, high = group["interval"]
        print(f"{name}: {100 * group['accuracy']:.1f} % [{100 * low:.1f}, {100 * high:.1f}], {group['n']} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart_hard"))
    parser.add_argument("--configs", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    hard_quickstart(options.out, options.configs, options.seed)


if __name__ == "__main__":
    main()
