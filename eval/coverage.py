"""How often do 95 % intervals hold the truth? Simulated runs with few prompts: our intervals against a percentile bootstrap.

``python eval/coverage.py`` (a CPU minute) writes ``eval/results/coverage.md``. Each prompt has its own difficulty (a beta
distribution with a given correlation between its pairs). Each pair is shown in both orders, and the second order repeats the
outcome of the first with a given probability.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rewardlab.metrics.intervals import Interval, difference_interval, mean_interval
from rewardlab.models.checkpoints import commit

Sample = tuple[np.ndarray, np.ndarray]  # by pair: its score, its prompt
DESIGNS = {
    "6 prompts of 2 to 10 pairs": [2, 3, 5, 6, 8, 10],
    "10 prompts of 3 or 4": [3, 4] * 5,
    "20 prompts of 10": [10] * 20,
    "46 prompts of 1 to 6": [1, 2, 3, 4, 5, 6] * 7 + [1, 2, 3, 6],
    "46 prompts of 1": [1] * 46,
    "300 prompts of 1 to 8": [1] * 150 + [3] * 100 + [8] * 50,
    "10 prompts: one of 40, 9 of 2": [40] + [2] * 9,
    "20 prompts: 2 of 50, 18 of 2": [50] * 2 + [2] * 18,
    "46 prompts: 3 of 60, 43 of 1": [60] * 3 + [1] * 43,
    "30 prompts: 5 of 30, 25 of 3": [30] * 5 + [3] * 25,
}
SHARES = (0.5, 0.7, 0.95, 0.98)
DIFFICULTIES = ((0.0, 0.0), (0.0, 0.7), (0.1, 0.7), (0.3, 0.0))  # correlation within a prompt, share of repeated outcomes
DIFFERENCES = ((0.1, 0.5), (0.3, 0.5), (0.1, 0.8), (0.3, 0.8), (0.1, 1.0))  # share of pairs that differ, of these upwards


def _chances(dice: np.random.Generator, share: float, correlation: float, num: int) -> np.ndarray:
    if not correlation:
        return np.full(num, share)
    size = (1 - correlation) / correlation
    return dice.beta(share * size, (1 - share) * size, num)


def accuracies(
    dice: np.random.Generator, sizes: np.ndarray, share: float, correlation: float, repeated: float
) -> Iterator[Sample]:
    """Yield runs: half a point for each order in which a pair is right."""
    prompt = np.repeat(np.arange(len(sizes)), sizes)
    while True:
        chance = _chances(dice, share, correlation, len(sizes))[prompt]
        first, other = dice.random(len(prompt)) < chance, dice.random(len(prompt)) < chance
        second = np.where(dice.random(len(prompt)) < repeated, first, other)
        yield (first + second.astype(float)) / 2, prompt


def differences(dice: np.random.Generator, sizes: np.ndarray, share: float, upwards: float) -> Iterator[Sample]:
    """Yield the differences of two runs: half a point in three of five pairs that differ, otherwise a whole point."""
    prompt = np.repeat(np.arange(len(sizes)), sizes)
    while True:
        size = np.where(dice.random(len(prompt)) < 0.6, 0.5, 1.0) * np.where(dice.random(len(prompt)) < upwards, 1, -1)
        yield size * (dice.random(len(prompt)) < share), prompt


def percentile_bootstrap(scores: np.ndarray, prompt: np.ndarray, seed: int, resamples: int = 500) -> Interval:
    """Return the percentile bootstrap: quantiles of the means of resampled prompts."""
    sums, counts = np.bincount(prompt, scores), np.bincount(prompt)
    drawn = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=resamples)
    low, high = np.quantile(drawn @ sums / (drawn @ counts), (0.025, 0.975))
    return float(low), float(high)


def covered(
    samples: Iterator[Sample], truth: float, interval: Callable[[np.ndarray, np.ndarray, int], Interval], num: int
) -> str:
    """Return "share of samples whose interval holds the truth (mean width)", in percent."""
    ends = [interval(*next(samples), seed) for seed in range(num)]
    hits = sum(low - 1e-9 <= truth <= high + 1e-9 for low, high in ends) / num
    return f"{100 * hits:.1f} ({100 * sum(high - low for low, high in ends) / num:.1f})"


def table(num: int, num_before: int) -> list[str]:
    """Return the lines of both tables."""
    lines = ["| prompts | accuracy | correlation | orders alike | bootstrap | these |", "|---|---|---|---|---|---|"]
    for name, design in DESIGNS.items():
        sizes = np.array(design)
        for share in SHARES:
            for correlation, repeated in DIFFICULTIES:
                draw = accuracies(np.random.default_rng(0), sizes, share, correlation, repeated)
                before = covered(draw, share, percentile_bootstrap, num_before)
                now = covered(draw, share, lambda scores, prompt, _: mean_interval(scores, prompt), num)
                lines.append(f"| {name} | {100 * share:g} % | {correlation:g} | {100 * repeated:g} % | {before} | {now} |")
    lines += ["", "Differences of two judges on the same pairs:", ""]
    lines += ["| prompts | pairs that differ | of these upwards | bootstrap | these |", "|---|---|---|---|---|"]
    for name, design in DESIGNS.items():
        sizes = np.array(design)
        for share, upwards in DIFFERENCES:
            draw, truth = differences(np.random.default_rng(0), sizes, share, upwards), 0.7 * share * (2 * upwards - 1)
            before = covered(draw, truth, percentile_bootstrap, num_before)
            now = covered(draw, truth, lambda gaps, prompt, _: difference_interval(gaps, prompt), num)
            lines.append(f"| {name} | {100 * share:g} % | {100 * upwards:g} % | {before} | {now} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000, help="Simulated runs of a cell.")
    parser.add_argument("--samples-before", type=int, default=200, help="Of the percentile bootstrap, which is slow.")
    parser.add_argument("--out", type=Path, default=Path("eval/results/coverage.md"))
    options = parser.parse_args()
    lines = table(options.samples, options.samples_before)
    shares = [float(line.split("|")[-2].split("(")[0]) for line in lines if line.startswith("|") and "(" in line]
    inside = sum(93 <= share <= 97.5 for share in shares)
    head = [
        "# Coverage of the 95 % intervals",
        "",
        f"`{shlex.join(['python', *sys.argv])}`, commit {commit()[:12]}.",
        f"Percent of {options.samples:,} simulated runs whose interval holds the truth (mean width in points);",
        f"of the percentile bootstrap, used before, {options.samples_before:,}.",
        "The intervals are those of `rewardlab/metrics/intervals.py`: CR2 over prompts, degrees of freedom by Bell and",
        "McCaffrey at the correlation that the residuals show (Imbens and Kolesár), logit scale.",
        "Of accuracies near 0 they are the mirror image of those near 1.",
        f"{inside} of {len(shares)} cells lie within 93 to 97.5; the least is {min(shares)}, the most {max(shares)}:",
        "where few mistakes are expected in all, samples without any give an interval that always holds.",
        "",
    ]
    options.out.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
