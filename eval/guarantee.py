"""Is the error of given verdicts kept, and what does that cost? Simulated judges with five biases, and a finished run.

``rewardlab bench run pairs --judge prob:runs/quickstart/sft/final --data runs/quickstart/demo/test.parquet --votes 8
--controls '' --out runs/guarantee``, then ``python eval/guarantee.py --run runs/guarantee`` (two CPU minutes) writes
``eval/results/guarantee.md`` and ``.json``.

A simulated judge writes eight rationales in each order. Prompts have one to three pairs that share half of their evidence. The
truth is the error of all 20,000 pairs above the threshold, each prompt weighing the same. Label sets are drawn with
replacement. The plain rule takes the lowest threshold whose labelled error is within the bound.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.comparison import logged_votes, read_run
from rewardlab.data.files import write_atomic
from rewardlab.metrics.guarantee import certified_threshold
from rewardlab.metrics.intervals import difference_interval
from rewardlab.models.checkpoints import commit
from rewardlab.types import BOTH_ORDERS, Vote
from rewardlab.verdicts.votes import both_orders_or_none, in_order, reduce_votes, winner_share

RESULTS = Path(__file__).parent / "results"
ERRORS, CONFIDENCE = (0.05, 0.02), 0.9
NUM_PROMPTS, RATIONALES, LABELS, SETS, DRAWS, HALVES = 10_000, 8, 500, 1000, 12, 6
TIERS, SAMPLES = (1, 2, 3, 5), 0.34  # votes of each order of the cheap tiers; fraction of all votes that a cascade may sample
FIRST_THRESHOLDS = (0.99, 0.995, 0.998, 0.999)  # of one rationale of each order, which saturates
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # by pair: confidence (nan: no verdict), whether right, prompt


def _evidence(dice: np.random.Generator, prompt: np.ndarray) -> np.ndarray:
    """[B] log-odds of the right response that a judge without bias has."""
    shared = dice.normal(0, 1, prompt.max() + 1)[prompt]
    return 2.6 + 1.2 * (shared + dice.normal(0, 1, prompt.size))


def _length(dice: np.random.Generator, m: np.ndarray) -> np.ndarray:
    return m + np.where(dice.random((m.shape[0], 1, 1)) < 0.5, 2.0, -2.0)  # the longer response is right in half of the pairs


def _place(dice: np.random.Generator, m: np.ndarray) -> np.ndarray:
    return m + np.array([1.0, -1.0])[None, :, None] * dice.normal(2.5, 2.5, m.shape)  # of the response shown first


def _group(dice: np.random.Generator, m: np.ndarray) -> np.ndarray:
    return np.where(dice.random((m.shape[0], 1, 1)) < 0.15, 1.5 - m, m)


def _adversarial(dice: np.random.Generator, m: np.ndarray) -> np.ndarray:
    return np.where(dice.random((m.shape[0], 1, 1)) < 0.03, -12.0 + dice.normal(0, 1, m.shape), m)


BIASES: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "none": lambda dice, m: m,
    "length": _length,
    "place": _place,
    "group": _group,
    "over-confident": lambda dice, m: 6 * m,
    "adversarial": _adversarial,
}


def simulated(bias: str, seed: int = 0) -> Arrays:
    """Return the pairs of a simulated judge: the probability over all pairs of rationales of the two orders, by log-odds."""
    dice = np.random.default_rng(seed)
    prompt = np.repeat(np.arange(NUM_PROMPTS), dice.integers(1, 4, NUM_PROMPTS))
    margins = _evidence(dice, prompt)[:, None, None] + dice.normal(0, 2, (prompt.size, 2, RATIONALES))
    margins = BIASES[bias](dice, margins)
    share = np.zeros(prompt.size)
    for k in range(RATIONALES):
        share += (0.5 + np.tanh((margins[:, 0, k, None] + margins[:, 1]) / 4) / 2).mean(1) / RATIONALES
    return np.maximum(share, 1 - share), share > 0.5, prompt


def plain_threshold(sure: np.ndarray, right: np.ndarray, error: float) -> float | None:
    """Return the lowest threshold whose labelled error is within ``error``."""
    order = np.argsort(-sure)
    fits = np.flatnonzero(np.cumsum(~right[order]) <= error * np.arange(1, sure.size + 1))
    return float(np.nextafter(sure[order[fits[-1]]], 0)) if fits.size else None


def label_sets(pairs: Arrays, error: float, *, sets: int = SETS, labels: int = LABELS, seed: int = 1) -> dict[str, float]:
    """Return fractions of label sets: over their bound, by our rule and the plain one, and without a threshold; mean coverage
    and error of the others."""
    sure, right, prompt = pairs
    dice, weight = np.random.default_rng(seed), 1 / np.bincount(prompt)[prompt]
    first = np.concatenate([[0], np.cumsum(np.bincount(prompt))])
    decided = ~np.isnan(sure)

    def truth(threshold: float | None) -> tuple[float, float]:
        given = decided & (sure > threshold) if threshold is not None else np.zeros(sure.size, dtype=bool)
        total = weight[given].sum()
        return total / weight.sum(), float((weight[given & ~right]).sum() / total) if total else 0.0

    rows = []
    for number in range(sets):
        drawn = dice.integers(0, first.size - 1, labels)
        places = np.concatenate([np.arange(first[n], first[n + 1]) for n in drawn])
        names = [str(n) for n, at in enumerate(drawn) for _ in range(first[at + 1] - first[at])]
        shares = [None if np.isnan(value) else float(value) for value in sure[places]]
        found = certified_threshold(shares, right[places].tolist(), names, error=error, confidence=CONFIDENCE, seed=number)
        coverage, wrong = truth(found.threshold)
        plain = plain_threshold(*(values[places][decided[places]] for values in (sure, right)), error)
        rows.append((wrong > error, found.threshold is None, coverage, wrong, truth(plain)[1] > error, truth(plain)[0]))
    over, none, coverage, wrong, plain_over, plain_coverage = map(float, np.mean(rows, axis=0))
    return {
        "over": over,
        "none": none,
        "coverage": coverage,
        "error": wrong,
        "plain_over": plain_over,
        "plain_coverage": plain_coverage,
    }


def first_votes(votes: Sequence[Vote], num: int, at: int = 0) -> tuple[Vote, ...]:
    """Return ``num`` votes of each order, from number ``at`` on."""
    return tuple(vote for order in BOTH_ORDERS for vote in in_order(votes, order)[at : at + num])


def judged_pairs(votes: Sequence[Sequence[Vote]], preferred: Sequence[int]) -> Arrays:
    judged = [both_orders_or_none(reduce_votes("", one)) for one in votes]
    sure = np.array([np.nan if (share := winner_share(one)) is None else share for one in judged])
    return sure, np.array([one.outcome.winner == y for one, y in zip(judged, preferred, strict=True)]), np.arange(len(judged))


def _tiered(tiers: dict[int, Arrays], thresholds: Sequence[float]) -> tuple[Arrays, np.ndarray]:
    """Return the pairs as judged by the first tier that is sure of them, else by all votes; and [B] votes of an order."""
    (sure, right, prompt), samples = tiers[RATIONALES], np.full(len(tiers[RATIONALES][0]), RATIONALES)
    for num, threshold in reversed(list(zip(TIERS, thresholds, strict=True))):
        keeps = np.nan_to_num(tiers[num][0]) > threshold
        sure, right = np.where(keeps, tiers[num][0], sure), np.where(keeps, tiers[num][1], right)
        samples = np.where(keeps, num, samples)
    return (sure, right, prompt), samples


def cascade(votes: Sequence[Sequence[Vote]], preferred: Sequence[int]) -> tuple[list[dict[str, Any]], Arrays]:
    """Return the samples and accuracy of a cascade on a half of the pairs, for several halves, each a mean over random orders
    of the votes; and the pairs as a cascade of the first order and half judged them.

    No label is used for the thresholds, t and 1/2 + a (2/votes)**b. Those of at most :data:`SAMPLES` are taken whose verdicts,
    on the other half, lose least against the verdicts of all votes: each that differs costs 2p - 1, p being their confidence.
    """
    dice = np.random.default_rng(0)
    rules = [
        (first, *(0.5 + a * (2 / k) ** b for k in TIERS[1:]))
        for first in FIRST_THRESHOLDS
        for a in np.arange(0.2, 0.5, 0.04)
        for b in (0.5, 0.75, 1.0, 1.5, 2.0)
    ]
    tried: list[list[tuple[Arrays, np.ndarray]]] = [[] for _ in rules]
    sure, full, _ = judged_pairs(votes, preferred)
    cost = 2 * np.nan_to_num(sure, nan=0.5) - 1
    for _ in range(DRAWS):
        order = dice.permutation(RATIONALES)
        shuffled = [[in_order(one, o)[n] for o in BOTH_ORDERS for n in order] for one in votes]
        tiers = {k: judged_pairs([first_votes(one, k) for one in shuffled], preferred) for k in (*TIERS, RATIONALES)}
        for rule, found in zip(rules, tried, strict=True):
            found.append(_tiered(tiers, rule))
    right = np.array([[pairs[1] for pairs, _ in found] for found in tried])  # [rule, order, pair]
    samples = np.array([[number for _, number in found] for found in tried]) / RATIONALES
    lines, best = [], 0
    for _ in range(HALVES):
        half = dice.permutation(len(votes)) % 2 == 0
        for fit in (half, ~half):
            within = np.flatnonzero(samples[:, :, fit].mean((1, 2)) <= SAMPLES)
            best = min(within, key=lambda n: float(((right[n] != full) * cost)[:, fit].mean()))
            gaps = (right[best].astype(float) - full).mean(0)[~fit]
            lines.append(
                {
                    "thresholds": [float(value) for value in rules[best]],
                    "samples": float(samples[best][:, ~fit].mean()),
                    "accuracy": float(right[best][:, ~fit].mean()),
                    "difference": float(gaps.mean()),
                    "interval": list(difference_interval(gaps.tolist())),
                }
            )
    return lines, tried[best][0][0]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def table(rows: dict[str, tuple[float, dict[float, dict[str, float]]]]) -> list[str]:
    lines = ["| judge | right | error | over the bound | coverage | mean error | no threshold | plain rule: over | covers |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name, (right, by_error) in rows.items():
        for error, one in by_error.items():
            cells = [percent(one[key]) for key in ("over", "coverage", "error", "none", "plain_over", "plain_coverage")]
            lines.append(f"| {name} | {percent(right)} | {percent(error)} | {' | '.join(cells)} |")
    return lines


def study(run: Path | None, *, sets: int = SETS) -> tuple[str, dict[str, Any]]:
    """Return the page and the numbers."""
    results: dict[str, Any] = {"commit": commit(), "sets": sets, "labels": LABELS, "confidence": CONFIDENCE}
    rows = {}
    for bias in BIASES:
        pairs = simulated(bias)
        rows[bias] = (float(pairs[1].mean()), {error: label_sets(pairs, error, sets=sets) for error in ERRORS})
    results["simulated"] = rows
    lines = [
        "# Verdicts with a guaranteed error",
        "",
        f"`{shlex.join(['python', *sys.argv])}`, commit {results['commit']}.",
        "",
    ]
    lines += [
        f"Percent. {sets:,} label sets of {LABELS} prompts each; at most {percent(1 - CONFIDENCE)} may be over the bound.",
        "",
    ]
    lines += ["## Simulated judges", "", *table(rows)]
    if run is not None:
        more, results["run"] = _of_run(run, sets)
        lines += more
    return "\n".join(lines) + "\n", results


def _of_run(folder: Path, sets: int) -> tuple[list[str], dict[str, Any]]:
    run, logged = read_run(folder), dict(logged_votes(folder / VOTES))
    votes, preferred = [logged[row.row] for row in run.rows], [int(row.preferred or 0) for row in run.rows]
    rows = {}
    for num in (1, 2, 4, RATIONALES):
        pairs = judged_pairs([first_votes(one, num) for one in votes], preferred)
        rows[f"{num} of each order"] = (float(pairs[1].mean()), {e: label_sets(pairs, e, sets=sets) for e in ERRORS})
    few = {e: label_sets(pairs, e, sets=sets, labels=300) for e in ERRORS}
    rows[f"{RATIONALES}, 300 labels"] = (float(pairs[1].mean()), few)
    tiers, joined = cascade(votes, preferred)
    rows["cascade"] = (float(joined[1].mean()), {e: label_sets(joined, e, sets=sets) for e in ERRORS})
    lines = ["", f"## The run: {len(votes):,} pairs, {run.report.votes} votes of each order", "", *table(rows)]
    lines += ["", "## A cascade on its votes", ""]
    lines += [
        f"{', '.join(map(str, TIERS))} votes of each order, and {RATIONALES} where these are unsure. The thresholds are fitted"
    ]
    lines += [
        "on half of the pairs to the verdicts of all votes, without labels; the numbers are of the other half, means over"
    ]
    lines += [f"{DRAWS} orders of the votes. Brackets are 95 % intervals over pairs: CR2 variance, Student's t."]
    lines += ["", "| thresholds | samples, % of all | right | less all votes, points |", "|---|---|---|---|"]
    for one in tiers:
        low, high = (f"{100 * end:+.1f}" for end in one["interval"])
        rule = ", ".join(f"{value:.2f}" for value in one["thresholds"])
        cells = [percent(one[key]) for key in ("samples", "accuracy")]
        lines.append(f"| {rule} | {' | '.join(cells)} | {100 * one['difference']:+.1f} [{low}, {high}] |")
    mean = {key: float(np.mean([one[key] for one in tiers])) for key in ("samples", "accuracy", "difference")}
    cells = [percent(mean[key]) for key in ("samples", "accuracy")]
    lines.append(f"| mean | {' | '.join(cells)} | {100 * mean['difference']:+.2f} |")
    return lines, {"pairs": len(votes), "by_votes": rows, "cascade": tiers, "cascade_mean": mean}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished run with eight votes of each order")
    parser.add_argument("--sets", type=int, default=SETS)
    options = parser.parse_args()
    page, results = study(options.run, sets=options.sets)
    write_atomic(RESULTS / "guarantee.md", page)
    write_atomic(RESULTS / "guarantee.json", json.dumps(results, indent=1) + "\n")
    print(page)


if __name__ == "__main__":
    main()
