"""Tables and diagrams of eval/calibration.py: from margins to numbers with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

from rewardlab.metrics.calibration import (
    basic_interval,
    brier,
    expected_calibration_error,
    least_calibration_error,
    nll,
    reliability,
)
from rewardlab.verdicts.margins import (
    both_orders,
    fit_temperature,
    over_rationale_pairs,
    over_rationales,
    position_gap,
    smoothed_share_margin,
)

matplotlib.use("Agg")
from matplotlib import pyplot as plt

JUDGES = {"sft": "SFT judge", "rl": "RL judge"}
BIASES = (0.0, 1.0, 2.0, 4.0)
NUM_RATIONALES, NUM_VOTES = 5, (1, 5, 15)
METRICS: dict[str, Callable[[Any, Any], float]] = {"ece": expected_calibration_error, "brier": brier, "nll": nll}


def combined(margins_N2K: np.ndarray, how: str, bias: float = 0.0) -> np.ndarray:
    """[N, trials] margins of response 0; ``how`` is one (both orders as trials of their own), mean, logit (of the orders'
    means) or pairs (logit of each pair of rationales, then their mean)."""
    margins_shown = torch.from_numpy(margins_N2K + bias)
    if how == "pairs":
        zeroed, read = margins_shown.nan_to_num(), ~margins_shown.isnan()
        return over_rationale_pairs(zeroed[:, 0], zeroed[:, 1], read[:, 0], read[:, 1])[:, None].numpy()
    given, swapped = (over_rationales(margins_shown[:, side].nan_to_num(), ~margins_shown[:, side].isnan()) for side in (0, 1))
    if how == "one":
        return torch.stack([given, -swapped], 1).numpy()
    return both_orders(given, swapped, how)[:, None].numpy()


def vote_share(votes_N2K: np.ndarray, k: int, *, pooled: bool) -> np.ndarray:
    """[N, trials] margins of the smoothed share of valid votes for response 0: k votes of one order, or k of each, pooled."""
    for_0 = np.stack([votes_N2K[:, 0, :k], 1 - votes_N2K[:, 1, :k]], 1)
    if pooled:
        for_0 = for_0.reshape(len(for_0), 1, -1)
    num, total = np.nansum(for_0, 2), (~np.isnan(for_0)).sum(2)
    return smoothed_share_margin(torch.from_numpy(num), torch.from_numpy(total)).numpy()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number > 1)


def methods(arrays: dict[str, np.ndarray], stages: Sequence[str]) -> dict[str, np.ndarray]:
    """Every method's [N, trials] margins of response 0."""
    orders = {"one": "one order", "mean": "both, mean", "logit": "both, log-odds"}
    margins = {f"classifier: {text}": combined(arrays["classifier"], how) for how, text in orders.items()}
    margins["Bradley-Terry head"] = arrays["rm"][:, None]
    for stage in stages:
        name = JUDGES[stage]
        for how, text in orders.items():
            margins[f"{name}, {NUM_RATIONALES} rationales: {text}"] = combined(arrays[f"{stage} margins"], how)
        margins[f"{name}, {NUM_RATIONALES} rationales: both, log-odds by pairs"] = combined(arrays[f"{stage} margins"], "pairs")
        for k in NUM_VOTES:
            margins[f"{name}, {_count(k, 'vote')}: one order"] = vote_share(arrays[f"{stage} votes"], k, pooled=False)
        for k in NUM_VOTES:
            margins[f"{name}, {_count(k, 'vote')} per order"] = vote_share(arrays[f"{stage} votes"], k, pooled=True)
    return margins


def _judged(margins: np.ndarray, happened_N: np.ndarray, tau: float = 1.0) -> dict[str, float]:
    """Accuracy over all trials (an unreadable or even one is not right) and the proper scores over the readable ones."""
    happened = np.broadcast_to(happened_N[:, None], margins.shape)
    read = ~np.isnan(margins)
    p = torch.from_numpy(margins[read] / tau).sigmoid().numpy()
    right = np.where(read, margins * (2 * happened - 1), 0) > 0
    return {"accuracy": float(right.mean()), **{name: metric(p, happened[read]) for name, metric in METRICS.items()}}


def evaluate(name: str, seeds: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Means over seeds on the evaluation halves, before and after the temperature of the other halves, with intervals.

    ``seeds`` hold (margins [N, trials], 1 where response 0 is preferred [N]). A resample draws pairs, alike for all seeds.
    """
    halves = [np.random.default_rng(0).permutation(len(happened)) for _, happened in seeds]
    fits, kept = [], []
    for (margins, happened), order in zip(seeds, halves, strict=True):
        half = len(order) // 2
        m, y = margins[order[:half]], np.broadcast_to(happened[order[:half], None], (half, margins.shape[1]))
        fits.append(fit_temperature(torch.from_numpy(m[~np.isnan(m)]), torch.from_numpy(1 - y[~np.isnan(m)])))
        kept.append((margins[order[half:]], happened[order[half:]]))
    num = min(len(happened) for _, happened in kept)

    def mean(taus: Sequence[float], metric: str) -> Callable[[np.ndarray], float]:
        return lambda i: float(np.mean([_judged(m[i], y[i], tau)[metric] for (m, y), tau in zip(kept, taus, strict=True)]))

    def with_interval(taus: Sequence[float], metric: str) -> list[float]:
        statistic = mean(taus, metric)
        return [statistic(np.arange(num)), *basic_interval(statistic, num, resamples=300, least=0.0)]

    ones, taus = [1.0] * len(kept), [fit.tau for fit in fits]
    least = [least_calibration_error(1 / (1 + np.exp(-m[~np.isnan(m)]))) for m, _ in kept]
    return {
        "accuracy": with_interval(ones, "accuracy"),
        "accuracy_by_seed": [_judged(m, y)["accuracy"] for m, y in kept],
        "before": {metric: with_interval(ones, metric) for metric in METRICS},
        "after": {metric: with_interval(taus, metric) for metric in METRICS},
        "least_ece": float(np.mean(least)),
        "tau": taus,
        "fit": [fit.fit.value for fit in fits],
        "unreadable": float(np.mean([np.isnan(m).mean() for m, _ in kept])),
        "name": name,
    }


def planted(measured: Sequence[dict[str, np.ndarray]], key: str, k: int) -> list[dict[str, Any]]:
    """Accuracy and calibration with a constant added to the first verdict's logit after each of k rationales, before any
    temperature, on all pairs."""
    rows = []
    for bias in BIASES:
        for how in ("one", "mean", "logit", "pairs"):
            results = [_judged(combined(f[key][:, :, :k], how, bias), 1 - f["preferred"]) for f in measured]
            rows.append({"bias": bias, "how": how, **{k: float(np.mean([j[k] for j in results])) for k in results[0]}})
    return rows


def position(arrays: dict[str, np.ndarray], key: str) -> dict[str, float]:
    """Return a judge's position bias: the mean gap between its orders, and the mean excess of the first slot's margin."""
    given, swapped = (torch.from_numpy(combined(arrays[key], "one")[:, side] * (1, -1)[side]) for side in (0, 1))
    read = ~(given + swapped).isnan()
    gap, bias = position_gap(given[read], swapped[read]), (given + swapped)[read] / 2
    return {"gap": gap.mean().item(), "bias": bias.mean().item(), "bias_deviation": bias.std().item()}


def _cell(value: Sequence[float], percent: bool = False) -> str:
    scale, digits = (100, 1) if percent else (1, 3)
    mean, low, high = (f"{x * scale:.{digits}f}" for x in value)
    return f"{mean} [{low}, {high}]"


def markdown(result: dict[str, Any]) -> str:
    """Return the tables and the command."""
    lines = [
        f"# Calibration: start {result['start']}, {result['steps']} steps, {len(result['runs'])} seed(s)",
        "",
        f"`{result['command']}` on the quickstarts {', '.join(result['runs'])}; commit {result['commit']}.",
        "",
        "Accuracy in percent; ECE over ten bins of equal width (least: what the same probabilities would show were they "
        "exactly right), Brier, negative log-likelihood in nats; means over seeds with 95 % bootstrap intervals over the pairs "
        "of the evaluation half. After: divided by a temperature fitted on the other half. One half everywhere has Brier .250, "
        "NLL .693. An even share of votes is not right. The intervals of ECE take out what a finite sample adds to it and can "
        "lie below the estimate.",
        "",
        "| | accuracy | ECE | least | Brier | NLL | tau | ECE after | Brier after | NLL after | unreadable |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["methods"]:
        before, after = ([_cell(row[when][metric]) for metric in METRICS] for when in ("before", "after"))
        taus = ", ".join(f"{tau:.2f}" if fit == "fitted" else fit for tau, fit in zip(row["tau"], row["fit"], strict=True))
        cells = [row["name"], _cell(row["accuracy"], True), before[0], f"{row['least_ece']:.3f}", *before[1:], taus, *after]
        lines.append(f"| {' | '.join(cells)} | {row['unreadable']:.2%} |")
    for key, rows in result["planted"].items():
        lines += ["", f"## A constant added to the first verdict's logit: {key}", ""]
        lines += ["| added | orders | accuracy | ECE | Brier | NLL |", "|---|---|---|---|---|---|"]
        for row in rows:
            numbers = " | ".join(f"{row[metric]:.3f}" for metric in METRICS)
            lines.append(f"| {row['bias']:g} | {row['how']} | {row['accuracy']:.1%} | {numbers} |")
    lines += [
        "",
        "## Position bias",
        "",
        "| | mean gap of the two orders | first-slot margin, mean | its deviation |",
        "|---|---|---|---|",
    ]
    for key, by_seed in result["position"].items():
        numbers = " | ".join(", ".join(f"{p[name]:.3f}" for p in by_seed) for name in ("gap", "bias", "bias_deviation"))
        lines.append(f"| {key} | {numbers} |")
    return "\n".join(lines) + "\n"


def draw(panels: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """One reliability diagram per method: predicted against observed, dots by how many pairs; all seeds together."""
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 7.2), sharex=True, sharey=True, layout="constrained")
    for axis, (name, (p, happened)) in zip(axes.flat, panels.items(), strict=True):
        bins = reliability(p, happened)
        axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axis.plot([b.predicted for b in bins], [b.happened for b in bins], color="#1f5fa8", linewidth=1)
        sizes = [6 + 500 * b.count / len(p) for b in bins]
        axis.scatter([b.predicted for b in bins], [b.happened for b in bins], sizes, color="#1f5fa8", alpha=0.6)
        axis.set_title(f"{name}\nECE {expected_calibration_error(p, happened):.3f}", fontsize=9)
        axis.set_aspect("equal")
    figure.supxlabel("predicted probability that response 0 is better")
    figure.supylabel("how often it was")
    figure.savefig(path, dpi=110)
    plt.close(figure)
