"""Plots of the method study: accuracy by method at both budgets, and learning curves with bands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from eval.studies.methods import ARMS, BASE, VALIDATION_SEED

COLOURS = ("#9db7cf", "#1f4e79")  # the smaller budget, the larger
GREY, RED = "#888888", "#b5482f"
COLUMNS = 4  # of panels


def draw_accuracy(summary: dict[str, Any], path: Path) -> None:
    """Draw the sampled accuracy of every method at each budget: its seeds, their mean and interval."""
    budgets = list(summary["table"])
    arms = list(summary["curves"])
    figure, axes = plt.subplots(figsize=(8.5, 0.5 * len(arms) + 1.4))
    for number, (budget, colour) in enumerate(zip(budgets, COLOURS, strict=False)):
        for line, arm in enumerate(arms):
            place = line + 0.32 * (number - 0.5)
            value = summary["table"][budget].get(arm, {}).get("accuracy")
            if value is None:
                continue
            seeds = _accuracies(summary, arm, budget)
            axes.plot(seeds, [place] * len(seeds), ".", color=colour, ms=4, alpha=0.7)
            if value["interval"] is not None:
                axes.plot([100 * bound for bound in value["interval"]], [place] * 2, color=colour, lw=2)
            label = f"{int(budget):,} tokens" if line == 0 else None
            axes.plot(100 * value["mean"], place, "o", color=colour, ms=6, label=label)
    axes.axvline(100 * summary["start"]["accuracy"], color=GREY, ls="--", lw=1, label="start")
    axes.set(yticks=range(len(arms)), yticklabels=[ARMS[arm].title for arm in arms], xlabel="sampled accuracy, %")
    axes.invert_yaxis()
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _accuracies(summary: dict[str, Any], arm: str, budget: str) -> list[float]:
    """Return the sampled accuracy of each seed of the table, in percent."""
    trials = [trial for trial in summary["trials"] if trial["arm"] == arm and trial["seed"] < VALIDATION_SEED]
    return [100 * row["accuracy"] for trial in trials for row in trial["budgets"] if str(row["budget"]) == budget]


def draw_curves(summary: dict[str, Any], path: Path) -> None:
    """Draw the fraction of right rollouts by generated tokens, a panel per method: the mean over seeds, a band from the lowest
    to the highest seed, and StableReinforce's mean for comparison."""
    curves = {arm: curve for arm, curve in summary["curves"].items() if curve["tokens"]}
    columns = min(COLUMNS, max(1, len(curves)))
    lines = max(1, math.ceil(len(curves) / columns))
    figure, panels = plt.subplots(
        lines, columns, figsize=(3.1 * columns, 2.3 * lines + 0.4), sharex=True, sharey=True, squeeze=False
    )
    base = curves.get(BASE)
    for panel in panels.flat[len(curves) :]:
        panel.axis("off")
    for panel in panels.flat[max(0, len(curves) - columns) : len(curves)]:  # the lowest of each column
        panel.tick_params(labelbottom=True)
    for panel, (arm, curve) in zip(panels.flat, curves.items(), strict=False):
        thousands = [tokens / 1000 for tokens in curve["tokens"]]
        panel.fill_between(
            thousands, *([100 * v for v in curve[side]] for side in ("low", "high")), color=COLOURS[0], alpha=0.6, lw=0
        )
        if base is not None and arm != BASE:
            panel.plot([t / 1000 for t in base["tokens"]], [100 * v for v in base["mean"]], color=RED, lw=1, ls="--")
        panel.plot(thousands, [100 * v for v in curve["mean"]], color=COLOURS[1], lw=1.8)
        for budget in list(summary["table"])[:-1]:
            panel.axvline(int(budget) / 1000, color="#cccccc", lw=0.8)
        panel.set_title(ARMS[arm].title, fontsize=9)
        panel.grid(color="#eeeeee")
        panel.set_axisbelow(True)
    figure.supxlabel("generated tokens, thousands", fontsize=9)
    figure.supylabel("rollouts right, %", fontsize=9)
    note = f"line: mean of seeds; band: lowest to highest seed; dashed: {ARMS[BASE].title}"
    figure.suptitle(note, fontsize=8, color=GREY)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
