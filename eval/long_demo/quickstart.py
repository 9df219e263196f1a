"""The long demonstration up to its cold start: `python -m eval.long_demo.quickstart --out runs/long/0 --seed 0`.

A base model and an SFT judge of a seed that are in `starts/SEED`, with weights in 8 bits, are taken from there: their training
takes an hour of two cores. `--from-scratch` trains others.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from eval.long_demo.build import FOLDER
from rewardlab.demo.build import BASE, pack_base, unpack_base
from rewardlab.demo.quickstart import open_quickstart
from rewardlab.models.checkpoints import CARD
from rewardlab.training.run.folder import FINAL

BUILD = ("python", "-m", "eval.long_demo.build")
STARTS = FOLDER / "starts"
PARTS = {"base": Path("demo") / BASE, "sft": Path("sft") / FINAL}
SFT_REPORT = Path("bench", "sft", "report.json")


def unpack_starts(out: Path, seed: int) -> None:
    """Put the published base model and SFT judge of a seed where their stages would, unless one of these has run."""
    if not (STARTS / str(seed)).exists() or (out / PARTS["base"]).exists():
        return
    for name, folder in PARTS.items():
        partial = (out / folder).with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        unpack_base(STARTS / str(seed) / name, partial)
        partial.rename(out / folder)


def pack_starts(out: Path, seed: int) -> None:
    """Make base model and SFT judge of ``out`` the published ones: packed, and replaced by what was packed."""
    for name, folder in PARTS.items():
        packed = STARTS / str(seed) / name
        shutil.rmtree(packed, ignore_errors=True)
        pack_base(out / folder, packed)
        for name in ("training_args.bin", "README.md"):
            (packed / name).unlink(missing_ok=True)
        if (packed / CARD).exists():
            card = json.loads((packed / CARD).read_text(encoding="utf-8"))
            kept = {name: card[name] for name in ("stage", "template", "template_hash", "versions")}
            (packed / CARD).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(out / folder)
    unpack_starts(out, seed)


def long_quickstart(out: Path, configs: Path = FOLDER, seed: int = 0, *, from_scratch: bool = False) -> None:
    """Run every stage that is not done: pairs, base model, teacher, distillation, SFT and its benchmark."""
    if not from_scratch:
        unpack_starts(out, seed)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/long"))
    parser.add_argument("--configs", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from-scratch", action="store_true", help="train base model and judge, also of a published seed")
    parser.add_argument("--pack", action="store_true", help="only make base model and judge of OUT the published ones")
    options = parser.parse_args()
    if options.pack:
        pack_starts(options.out, options.seed)
        return
    long_quickstart(options.out, options.configs, options.seed, from_scratch=options.from_scratch)
    print("\n".join(figures(json.loads((options.out / SFT_REPORT).read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
