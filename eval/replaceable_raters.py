"""How good must a judge of Multimodal RewardBench 2 be to replace one of its raters? Simulated judges against the real ratings.

``python eval/replaceable_raters.py --data FOLDER`` (a CPU minute) writes ``eval/results/replaceable_raters.md``. A simulated
judge is right with one probability in each order of each pair, whatever people found hard; five seeds for each accuracy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from rewardlab.benchmarks.agreement import RatedPair, agreement_scores
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.mmrb2 import load_mmrb2
from rewardlab.models.checkpoints import commit
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Verdict, VerdictStatus, Vote, choice_of

TASKS, ACCURACIES, SEEDS = ("t2i", "edit", "interleaved"), (0.75, 0.78, 0.8, 0.82, 0.85, 0.9), range(5)
NOTHING = Completion("", FinishReason.STOP)


def simulated(row: Row, accuracy: float, dice: np.random.Generator) -> RatedPair:
    """Return a pair with one vote in each order by a judge of this accuracy."""
    better, right = row.pair.preferred or 0, dice.random(len(BOTH_ORDERS)) < accuracy
    votes = [
        Vote(order, Verdict(choice_of(better if is_right else 1 - better, order), VerdictStatus.OK), NOTHING)
        for order, is_right in zip(BOTH_ORDERS, right, strict=True)
    ]
    return RatedPair(row.row, row.group, row.cluster, votes, row.pair.ratings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Folder of the benchmark's four files.")
    parser.add_argument("--out", type=Path, default=Path("eval/results/replaceable_raters.md"))
    options = parser.parse_args()
    rows = load_mmrb2(options.data, images=None, with_images=False)
    lines = ["| task | one person | two people | alpha | judge right in | replaces raters (mean of 5 seeds) | advantage |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for task in TASKS:
        of_task = [row for row in rows if row.group == task]
        for accuracy in ACCURACIES:
            runs = [
                agreement_scores([simulated(row, accuracy, dice) for row in of_task])
                for dice in map(np.random.default_rng, SEEDS)
            ]
            scores = [run for run in runs if run is not None]
            first, won = scores[0], np.mean([run.winning_rate or 0.0 for run in scores])
            assert first.others is not None
            people = [first.person.accuracy, first.others.accuracy]
            cells = [task, *(f"{100 * share:.1f} %" for share in people), f"{first.alpha:.2f}", f"{100 * accuracy:.0f} %"]
            cells += [f"{100 * won:.0f} %", f"{np.mean([run.advantage or 0.0 for run in scores]):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    head = [
        "# Judges that may replace a rater of Multimodal RewardBench 2",
        "",
        f"`python eval/replaceable_raters.py --data FOLDER`, commit {commit()[:12]}.",
        "",
    ]
    head += ["Simulated judges; the ratings are those of the benchmark's files. Alternative annotator test, epsilon 0.1.", ""]
    options.out.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
