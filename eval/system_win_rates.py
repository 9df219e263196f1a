"""Do win rates of systems, corrected by few labels, hold the truth and rank the systems, where the judge is biased?

``python eval/system_win_rates.py`` (ten CPU minutes) writes ``eval/results/system_win_rates.md``. Four systems of different
strength answer prompts; each prompt has three pairs of two systems. A random 100 or 300 of 1,500 judged pairs have a label. The
scores are those of a run's report.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.systems import SystemScores, system_scores
from rewardlab.metrics.intervals import AccuracyEstimate
from rewardlab.metrics.prediction_powered import CorrectedScore
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.tables import markdown_table
from rewardlab.types import Judgment, Outcome, PreferencePair

STRENGTHS = np.array([0.0, 0.15, 0.4, 0.6])  # logits
NAMES = ("a", "b", "c", "d")
LABELS = (100, 300)
NUM_PROMPTS, PAIRS_OF_PROMPT, NUM_VOTES = 500, 3, 8
COLUMNS = (
    *("bias of the judge", "labels", "judge alone", "labels alone", "corrected", "labels saved"),
    *("width, of labels alone: mean", "most", "ranked right: judge", "labels", "corrected"),
)
Bias = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]  # of [pairs] logits and [pairs, 2] systems
BIASES: dict[str, Bias] = {
    "none": lambda logits, systems, dice: 1.2 * logits,
    "for one system": lambda logits, systems, dice: 1.2 * logits + 0.8 * (systems == 0) @ np.array([1, -1]),
    "for two systems": lambda logits, systems, dice: 1.2 * logits + 0.5 * ((systems > 1) @ np.array([-1, 1])),
    "place (sides at random)": lambda logits, systems, dice: 1.2 * logits + 0.8,
    "over-confident": lambda logits, systems, dice: 4.8 * logits,
    "adversarial": lambda logits, systems, dice: -0.5 * logits,
}
TURNED = 0.1  # of the labels


def draw(bias: Bias, num_prompts: int, dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [pairs, 2] systems, [pairs] labels (1: response 0 is better) and [pairs] scores of the judge, prompt by prompt."""
    num = num_prompts * PAIRS_OF_PROMPT
    first = dice.integers(0, 4, num)
    systems = np.stack([first, (first + dice.integers(1, 4, num)) % 4], axis=1)
    ease = np.repeat(dice.normal(0, 0.7, (num_prompts, 4)), PAIRS_OF_PROMPT, axis=0)  # of a prompt for each system
    gains = STRENGTHS[systems] + np.take_along_axis(ease, systems, axis=1)
    logits = gains[:, 0] - gains[:, 1] + dice.normal(0, 0.5, num)
    labels = (dice.random(num) < 1 / (1 + np.exp(-1.5 * logits))) ^ (dice.random(num) < TURNED)
    return systems, labels, dice.binomial(NUM_VOTES, 1 / (1 + np.exp(-bias(logits, systems, dice)))) / NUM_VOTES


def win_rates(systems: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return [4] mean scores of the systems over their pairs."""
    sums = np.bincount(systems[:, 0], scores, 4) + np.bincount(systems[:, 1], 1 - scores, 4)
    return sums / np.bincount(systems.ravel(), minlength=4)


def scores_of(bias: Bias, num_labels: int, dice: np.random.Generator) -> SystemScores:
    """Return the scores of a report on one sample of pairs and labels."""
    systems, labels, shares = draw(bias, NUM_PROMPTS, dice)
    labelled = set(dice.permutation(len(labels))[:num_labels].tolist())
    rows, judgments = [], []
    for n, ((first, second), label, share) in enumerate(zip(systems.tolist(), labels.tolist(), shares.tolist(), strict=True)):
        preferred = int(not label) if n in labelled else None
        pair = PreferencePair(str(n), "", ("", ""), preferred, systems=(NAMES[first], NAMES[second]))
        rows.append(Row(n, pair, "all", str(n // PAIRS_OF_PROMPT), {}))
        judgments.append(Judgment(str(n), (), Outcome.TIE, share))
    scores = system_scores(rows, judgments)
    assert scores is not None
    return scores


def row_of(name: str, num_labels: int, repetitions: int) -> list[str]:
    """Return the cells of one design: coverage in percent over systems, labels saved, widths, pairs of systems in order."""
    dice = np.random.default_rng(0)
    systems, labels, _ = draw(BIASES[name], 400_000, np.random.default_rng(1))
    truth = dict(zip(NAMES, win_rates(systems, labels.astype(float)).tolist(), strict=True))
    runs = [scores_of(BIASES[name], num_labels, dice).win_rates for _ in range(repetitions)]
    cells = [(truth[system], run[system]) for run in runs for system in NAMES]
    kinds = ("judge_only", "label_only", "corrected")

    def of(score: CorrectedScore, kind: str) -> AccuracyEstimate:
        estimate: AccuracyEstimate = getattr(score, kind)
        return estimate

    def width(estimate: AccuracyEstimate) -> float:
        return estimate.interval[1] - estimate.interval[0]

    def in_order(kind: str) -> str:
        gaps = [
            of(run[one], kind).accuracy - of(run[other], kind).accuracy for run in runs for other, one in combinations(NAMES, 2)
        ]
        return f"{100 * np.mean(np.array(gaps) > 0):.1f}"

    shares = []
    for kind in kinds:
        ends = [(rate, of(score, kind).interval) for rate, score in cells]
        shares.append(f"{100 * np.mean([low <= rate <= high for rate, (low, high) in ends]):.1f}")
    ratios = [width(of(score, "corrected")) / width(of(score, "label_only")) for _, score in cells]
    saved = 100 * np.mean([score.saved or 0.0 for _, score in cells])
    return [
        *(name, str(num_labels), *shares, f"{saved:.0f} %", f"{np.mean(ratios):.3f}", f"{max(ratios):.3f}"),
        *map(in_order, kinds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000, help="Simulated samples of a design.")
    parser.add_argument("--out", type=Path, default=Path("eval/results/system_win_rates.md"))
    options = parser.parse_args()
    rows = [row_of(name, num_labels, options.repetitions) for name in BIASES for num_labels in LABELS]
    shares = [float(row[4]) for row in rows]
    lines = [
        "# Win rates of systems, corrected by few labels",
        "",
        f"`{shlex.join(['python', *sys.argv])}`, commit {commit()[:12]}.",
        f"Four systems, {NUM_PROMPTS * PAIRS_OF_PROMPT:,} judged pairs ({PAIRS_OF_PROMPT} a prompt), a label of 100 or 300",
        f"of them, {100 * TURNED:.0f} % of the labels turned. "
        f"Percent of {options.repetitions:,} samples and four systems of which",
        "the 95 % interval holds the true win rate; widths of single intervals against those of labels alone; "
        "percent of pairs of",
        f"systems in their true order. The corrected win rate is covered in {min(shares)} to {max(shares)} %.",
        "",
        *markdown_table(COLUMNS, rows),
    ]
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
