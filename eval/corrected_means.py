"""Does a win rate corrected by few labels hold the truth, where the judge is biased? Simulated judges and raters.

``python eval/corrected_means.py`` (five CPU minutes) writes ``eval/results/corrected_means.md``. Of 2,000 judged pairs, 100 or
300 have one person's label. Pairs differ in how much better response 0 is; the judge's score is its fraction of 8 votes.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rewardlab.metrics.intervals import AccuracyEstimate
from rewardlab.metrics.prediction_powered import CorrectedMean, corrected_mean
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.tables import markdown_table

NUM_PAIRS, NUM_VOTES = 2000, 8
NOISES = {"people as they judge": 0.0, "15 % of labels turned": 0.15}
LABELS = (100, 300)
COLUMNS = (
    *("bias of the judge", "people", "labels", "judge only", "labels only", "corrected", "labels saved"),
    *("width, of labels only: mean", "most"),
)
ERRORS = 0.02  # of a judge that says what people do, but on so many pairs
Bias = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # of [pairs] logits for response 0, what the judge has
BIASES: dict[str, Bias | None] = {
    "none": lambda logits, dice: 1.2 * logits,
    "length": lambda logits, dice: 1.2 * logits + dice.normal(0.6, 1.0, logits.size),  # response 0 is longer more often
    "place": lambda logits, dice: 1.2 * logits + 0.8,  # asked in one order
    "group": lambda logits, dice: 1.2 * logits + 1.8 * (dice.random(logits.size) < 0.3),
    "over-confident": lambda logits, dice: 4.8 * logits,
    "adversarial": lambda logits, dice: 1.0 - 0.1 * logits,
    "few errors": None,
}


def draw(bias: Bias | None, noise: float, num: int, dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return [num] people's labels (1: response 0 is better) and [num] scores of the judge."""
    logits = dice.normal(0.25, 1.0, num)
    labels = dice.random(num) < 1 / (1 + np.exp(-1.5 * logits))
    labels ^= dice.random(num) < noise
    if bias is None:
        return labels.astype(float), (labels ^ (dice.random(num) < ERRORS)).astype(float)
    return labels.astype(float), dice.binomial(NUM_VOTES, 1 / (1 + np.exp(-bias(logits, dice)))) / NUM_VOTES


def row_of(name: str, noise: str, num_labels: int, repetitions: int) -> list[str]:
    """Return the cells of one design: coverage in percent of the three means, labels saved, widths against labels alone."""
    dice = np.random.default_rng(0)
    truth = draw(BIASES[name], NOISES[noise], 2_000_000, np.random.default_rng(1))[0].mean()
    runs: list[CorrectedMean] = []
    for _ in range(repetitions):
        labels, scores = draw(BIASES[name], NOISES[noise], NUM_PAIRS, dice)
        runs.append(corrected_mean(labels[:num_labels], scores[:num_labels], scores[num_labels:]))

    def covered(estimates: list[AccuracyEstimate]) -> str:
        return f"{100 * np.mean([one.interval[0] <= truth <= one.interval[1] for one in estimates]):.1f}"

    def width(estimate: AccuracyEstimate) -> float:
        return estimate.interval[1] - estimate.interval[0]

    shares = [covered([getattr(run, kind) for run in runs]) for kind in ("judge_only", "label_only", "corrected")]
    ratios = [width(run.corrected) / width(run.label_only) for run in runs]
    saved = 100 * np.mean([run.saved for run in runs])
    return [name, noise, str(num_labels), *shares, f"{saved:.0f} %", f"{np.mean(ratios):.3f}", f"{max(ratios):.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000, help="Simulated sets of labels of a design.")
    parser.add_argument("--out", type=Path, default=Path("eval/results/corrected_means.md"))
    options = parser.parse_args()
    rows = [row_of(*design, options.repetitions) for design in ((b, n, k) for b in BIASES for n in NOISES for k in LABELS)]
    shares = [float(row[5]) for row in rows]
    lines = [
        "# Means of people's labels, corrected by few of them",
        "",
        f"`{shlex.join(['python', *sys.argv])}`, commit {commit()[:12]}.",
        f"Percent of {options.repetitions:,} sets of labels whose 95 % interval holds the truth: the judge's mean of",
        f"{NUM_PAIRS:,} pairs, the labels' own, and the corrected mean (power-tuned prediction-powered inference). The labels",
        "saved are a mean.",
        f"The corrected mean is covered in {min(shares)} to {max(shares)} %.",
        "",
        *markdown_table(COLUMNS, rows),
    ]
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
