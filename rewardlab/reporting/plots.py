"""The figures of a report: groups, votes, length, confidence. Each an SVG that stands inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

plt.rcParams["text.parse_math"] = False  # names of groups and judges are text, dollars and all
INK, WARM, GREY, LEAF = "#1f4e79", "#c0504d", "#888888", "#3b7a3e"
WIDE, LOW = 6.0, 3.2  # inches
NAMES = {"vote_share": "share of votes", "verdict_probability": "probability of the verdict"}


def figure_uri(figure: Any) -> str:
    """A matplotlib figure as an SVG data URL."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def plots(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(caption, SVG data URL) of everything that the report has numbers for."""
    found = [("Accuracy by group", plot_groups(report))]
    if len(report["k_curve"]) > 1:
        found.append(("What more votes buy", plot_curve(report)))
    if report["position_bias"] is not None:
        found.append(("Position: how often the response shown first is named", plot_position(report)))
    found.append(("Length: accuracy by how much longer the better response is", plot_length(report)))
    if any("reliability" in told for told in report["confidence"].values()):
        found.append(("Reliability: is a confidence worth its name?", plot_reliability(report)))
    if any(len(told.get("risk_coverage", ())) > 1 for told in report["confidence"].values()):
        found.append(("Abstaining: errors among the pairs a judge is surest of", plot_risk(report)))
    return found


def _bars(axes: Any, cells: dict[str, dict[str, Any]]) -> None:
    for place, cell in enumerate(cells.values()):
        low, high = cell["interval"]
        axes.plot([100 * low, 100 * high], [place, place], color=INK, lw=2)
        axes.plot(100 * cell["accuracy"], place, "o", color=INK, ms=7)
    axes.set(yticks=range(len(cells)), yticklabels=list(cells), xlim=(0, 100), ylim=(len(cells) - 0.5, -0.5))


def plot_groups(report: dict[str, Any]) -> str:
    """Accuracy per group with intervals, beside chance and the best baseline."""
    cells = {**report["groups"], "overall": {"accuracy": report["accuracy"]["micro"], "interval": report["interval"]}}
    figure, axes = plt.subplots(figsize=(WIDE, 0.4 * len(cells) + 1.4))
    _bars(axes, cells)
    _chance(axes, report)
    return figure_uri(figure)


def _chance(axes: Any, report: dict[str, Any]) -> None:
    axes.axvline(50, color=GREY, ls="--", lw=1)
    best = max(report["baselines"].items(), key=lambda item: item[1]["micro"])
    axes.axvline(100 * best[1]["micro"], color=WARM, ls=":", lw=1.5, label=f"best baseline: {best[0]}")
    axes.set(xlabel="accuracy, % (95 % interval)")
    axes.legend(loc="lower left", frameon=False, fontsize=8)


def plot_curve(report: dict[str, Any]) -> str:
    """Accuracy against samples per pair, by each way of reducing them."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    curve = report["k_curve"]
    lines = [("one order, majority of K", 1, None, INK), ("both orders, K each", 2, "balanced", LEAF)]
    lines.append(("both orders, by probability", 2, "weighted", WARM))
    for label, per_k, key, color in lines:
        cells = [(per_k * c["k"], c if key is None else c[key]) for c in curve if key is None or c[key]]
        if cells:
            samples, own = [n for n, _ in cells], [cell for _, cell in cells]
            axes.plot(samples, [100 * c["accuracy"] for c in own], "o-", color=color, label=label, ms=4)
            low, high = ([100 * c["interval"][side] for c in own] for side in (0, 1))
            axes.fill_between(samples, low, high, alpha=0.15, color=color)
    if report["sequential"]:
        stops = [c for c in report["sequential"] if c["error"]]
        points = [c["samples"] for c in stops], [100 * c["accuracy"] for c in stops]
        axes.plot(*points, "D--", color="#b8860b", label="both orders, stopped when settled", ms=4)
    axes.set(xlabel="samples per pair", ylabel="accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def plot_position(report: dict[str, Any]) -> str:
    """Share of valid verdicts for the first place, by group."""
    shares = {name: cell["position_bias"] for name, cell in report["groups"].items()} | {"overall": report["position_bias"]}
    figure, axes = plt.subplots(figsize=(WIDE, 0.4 * len(shares) + 1.2))
    for place, lean in enumerate(shares.values()):
        if lean is not None:
            axes.plot([50, 50 + 100 * lean], [place, place], color=WARM, lw=6, solid_capstyle="butt")
            axes.plot(50 + 100 * lean, place, "o", color=WARM, ms=7)
    axes.axvline(50, color=GREY, ls="--", lw=1)
    axes.set(yticks=range(len(shares)), yticklabels=list(shares), xlim=(0, 100), xlabel="named first, % (50: no lean)")
    axes.set_ylim(len(shares) - 0.5, -0.5)
    return figure_uri(figure)


def plot_length(report: dict[str, Any]) -> str:
    """Accuracy in fifths of the pairs by the difference in length."""
    cells = report["by_length"]
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    places = range(len(cells))
    for place, cell in zip(places, cells, strict=True):
        axes.plot([place, place], [100 * side for side in cell["interval"]], color=INK, lw=2)
    axes.plot(places, [100 * cell["accuracy"] for cell in cells], "o-", color=INK)
    axes.axhline(50, color=GREY, ls="--", lw=1)
    axes.set(xticks=places, xticklabels=[f"{cell['characters']:+,}" for cell in cells], ylim=(0, 100))
    axes.set(xlabel="better response less the other, characters (median of each fifth)", ylabel="accuracy, %")
    return figure_uri(figure)


def plot_reliability(report: dict[str, Any]) -> str:
    """Observed accuracy against confidence, the area of a point by its pairs."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    axes.plot([50, 100], [50, 100], color=GREY, ls="--", lw=1)
    for (name, told), color in zip(report["confidence"].items(), (INK, WARM), strict=False):
        bins = told.get("reliability", [])
        total = sum(one["count"] for one in bins)
        points = [100 * one["predicted"] for one in bins], [100 * one["happened"] for one in bins]
        axes.plot(*points, "-", color=color, lw=1)
        label = NAMES[name] + (f", ECE {100 * told['ece']:.1f}" if bins else "")
        axes.scatter(*points, s=[20 + 400 * one["count"] / total for one in bins], color=color, alpha=0.6, label=label)
    axes.set(xlim=(48, 102), xlabel="confidence in the response named, %", ylabel="right, %")
    legend = axes.legend(frameon=False, fontsize=8)
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def plot_risk(report: dict[str, Any]) -> str:
    """Share of errors among the pairs decided, against how many are."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    for (name, told), color in zip(report["confidence"].items(), (INK, WARM), strict=False):
        curve = told.get("risk_coverage", [])
        points = [100 * one["coverage"] for one in curve], [100 * one["risk"] for one in curve]
        axes.plot(*points, "o-", color=color, ms=3, label=NAMES[name])
    axes.set(xlim=(0, 102), xlabel="pairs decided, %", ylabel="of those wrong, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def plot_leaderboard(runs: Sequence[Any]) -> str:
    """Accuracy of each run with its interval, best first, beside chance and the best baseline."""
    ranked = sorted(runs, key=lambda run: -run.report["accuracy"]["micro"])
    cells = {run.name: {"accuracy": run.report["accuracy"]["micro"], "interval": run.report["interval"]} for run in ranked}
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(cells) + 1.4))
    _bars(axes, cells)
    _chance(axes, runs[0].report)
    return figure_uri(figure)
