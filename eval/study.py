"""The quickstart over several seeds, by hand: `python eval/study.py --out runs/study`. Results go to eval/results/."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.demo.quickstart import quickstart
from rewardlab.demo.summary import STAGES, TITLES, sentences, table

ROOT = Path(__file__).parent


def slim(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without the served judgment's texts."""
    return {key: value for key, value in summary.items() if key != "served"}


def markdown(summaries: list[dict[str, Any]]) -> str:
    """One table per seed, and the paired gains."""
    commits = sorted({s["commit"] for s in summaries})
    lines = ["# The quickstart over seeds", "", f"`python eval/study.py`, commit {', '.join(commits)}."]
    for summary in summaries:
        lines += ["", f"## Seed {summary['seed']}", "", "| | " + " | ".join(TITLES[stage] for stage in STAGES) + " |"]
        rows = [(name.replace("  ", "&emsp;"), cells) for name, cells in table(summary)]
        lines += ["|---|---|---|---|", *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)]
        lines += ["", *(f"- {sentence}" for sentence in sentences(summary)), f"- seconds: {summary['seconds']}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    summaries = [
        slim(quickstart(options.out / f"seed{seed}", ROOT.parent / "configs" / "tiny", seed)) for seed in options.seeds
    ]
    for summary in summaries:  # only now: a changed file in the tree would mark the next seed's commit as changed
        write_atomic(ROOT / "results" / f"quickstart_seed{summary['seed']}.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(ROOT / "results" / "quickstart.md", markdown(summaries))


if __name__ == "__main__":
    main()
