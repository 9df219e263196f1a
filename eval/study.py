"""The quickstart over several seeds: `python eval/study.py --out runs/study`. Writes to eval/results/."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rewardlab.data.files import write_atomic
from rewardlab.demo.quickstart import quickstart
from rewardlab.demo.summary import STAGES, TITLES, Summary, summary_sentences, summary_table

ROOT = Path(__file__).parent


def to_json(summary: Summary) -> str:
    """Return a summary without the served judgment's texts."""
    return json.dumps({key: value for key, value in summary.to_json().items() if key != "served"}, indent=1) + "\n"


def markdown(summaries: list[Summary]) -> str:
    """Return one table per seed, and the paired gains."""
    commits = sorted({s.commit for s in summaries})
    lines = ["# The quickstart over seeds", "", f"`python eval/study.py`, commit {', '.join(commits)}."]
    lines += ["", "Brackets are 95 % intervals over pairs: jackknife variance, Student's t."]
    for summary in summaries:
        lines += ["", f"## Seed {summary.seed}", "", "| | " + " | ".join(TITLES[stage] for stage in STAGES) + " |"]
        rows = [(name.replace("  ", "&emsp;"), cells) for name, cells in summary_table(summary)]
        lines += ["|---|---|---|---|", *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)]
        lines += ["", *(f"- {sentence}" for sentence in summary_sentences(summary)), f"- seconds: {summary.seconds}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    summaries = [quickstart(options.out / f"seed{seed}", "tiny", seed) for seed in options.seeds]
    for summary in summaries:  # only now: a changed file in the tree would mark the next seed's commit as changed
        write_atomic(ROOT / "results" / f"quickstart_seed{summary.seed}.json", to_json(summary))
    write_atomic(ROOT / "results" / "quickstart.md", markdown(summaries))


if __name__ == "__main__":
    main()
