"""The figures of reports: accuracies, votes, length, confidence. Each is an SVG that stands inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection

from rewardlab.metrics.calibration import Bin, RiskPoint
from rewardlab.metrics.intervals import Interval

plt.rcParams["text.parse_math"] = False  # names of groups and judges are text, dollars and all
INK, WARM, GREY, LEAF, GOLD = "#1f4e79", "#c0504d", "#888888", "#3b7a3e", "#b8860b"
WIDE, LOW = 6.0, 3.2  # inches


class Measured(Protocol):
    """An accuracy (0..1) with its interval."""

    @property
    def accuracy(self) -> float: ...

    @property
    def interval(self) -> Interval: ...


@dataclass(frozen=True)
class Line:
    """Accuracies against numbers of samples per pair."""

    label: str
    samples: Sequence[float]
    points: Sequence[Measured]
    color: str


def figure_uri(figure: Any) -> str:
    """Return a matplotlib figure as an SVG data URL."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def plot_accuracies(cells: Mapping[str, Measured], baseline: tuple[str, float], *, width: float = WIDE) -> str:
    """Draw accuracies by name with their intervals, beside chance and a baseline's (name, accuracy)."""
    figure, axes = plt.subplots(figsize=(width, 0.4 * len(cells) + 1.4))
    for place, cell in enumerate(cells.values()):
        low, high = cell.interval
        axes.plot([100 * low, 100 * high], [place, place], color=INK, lw=2)
        axes.plot(100 * cell.accuracy, place, "o", color=INK, ms=7)
    axes.set(yticks=range(len(cells)), yticklabels=list(cells), xlim=(0, 100), ylim=(len(cells) - 0.5, -0.5))
    axes.axvline(50, color=GREY, ls="--", lw=1)
    axes.axvline(100 * baseline[1], color=WARM, ls=":", lw=1.5, label=f"best baseline: {baseline[0]}")
    axes.set(xlabel="accuracy, % (95 % interval)")
    axes.legend(loc="lower left", frameon=False, fontsize=8)
    return figure_uri(figure)


def plot_curve(lines: Sequence[Line], stopping: Line | None) -> str:
    """Draw accuracy against samples per pair, a line per way of reducing them; ``stopping`` is dashed, without intervals."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    for line in lines:
        axes.plot(line.samples, [100 * p.accuracy for p in line.points], "o-", color=line.color, label=line.label, ms=4)
        low, high = ([100 * p.interval[side] for p in line.points] for side in (0, 1))
        axes.fill_between(line.samples, low, high, alpha=0.15, color=line.color)
    if stopping is not None:
        accuracies = [100 * point.accuracy for point in stopping.points]
        axes.plot(stopping.samples, accuracies, "D--", color=stopping.color, label=stopping.label, ms=4)
    axes.set(xlabel="samples per pair", ylabel="accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def plot_position(biases: Mapping[str, float | None]) -> str:
    """Draw the share of valid verdicts for the first place, by name, from its bias (the share less one half)."""
    figure, axes = plt.subplots(figsize=(WIDE, 0.4 * len(biases) + 1.2))
    for place, bias in enumerate(biases.values()):
        if bias is not None:
            axes.plot([50, 50 + 100 * bias], [place, place], color=WARM, lw=6, solid_capstyle="butt")
            axes.plot(50 + 100 * bias, place, "o", color=WARM, ms=7)
    axes.axvline(50, color=GREY, ls="--", lw=1)
    axes.set(yticks=range(len(biases)), yticklabels=list(biases), xlim=(0, 100), xlabel="named first, % (50: no bias)")
    axes.set_ylim(len(biases) - 0.5, -0.5)
    return figure_uri(figure)


def plot_length(cells: Sequence[tuple[int, Measured]]) -> str:
    """Draw accuracy by the difference in length, (characters, accuracy) each."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    places = range(len(cells))
    for place, (_, cell) in zip(places, cells, strict=True):
        axes.plot([place, place], [100 * side for side in cell.interval], color=INK, lw=2)
    axes.plot(places, [100 * cell.accuracy for _, cell in cells], "o-", color=INK)
    axes.axhline(50, color=GREY, ls="--", lw=1)
    axes.set(xticks=places, xticklabels=[f"{characters:+,}" for characters, _ in cells], ylim=(0, 100))
    axes.set(xlabel="better response less the other, characters (median of each fifth)", ylabel="accuracy, %")
    return figure_uri(figure)


def plot_reliability(confidences: Mapping[str, Sequence[Bin]]) -> str:
    """Draw observed accuracy against confidence, by the confidence's label; the area of a point goes by its pairs."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    axes.plot([50, 100], [50, 100], color=GREY, ls="--", lw=1)
    for (label, bins), color in zip(confidences.items(), (INK, WARM), strict=False):
        total = sum(cell.count for cell in bins)
        points = [100 * cell.predicted for cell in bins], [100 * cell.happened for cell in bins]
        axes.plot(*points, "-", color=color, lw=1)
        axes.scatter(*points, s=[20 + 400 * cell.count / total for cell in bins], color=color, alpha=0.6, label=label)
    axes.set(xlim=(48, 102), xlabel="confidence in the response named, %", ylabel="right, %")
    legend = axes.legend(frameon=False, fontsize=8)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([40])
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def plot_risk(curves: Mapping[str, Sequence[RiskPoint]]) -> str:
    """Draw the share of errors among the pairs decided against how many are, by the confidence's label."""
    figure, axes = plt.subplots(figsize=(WIDE, LOW))
    for (label, curve), color in zip(curves.items(), (INK, WARM), strict=False):
        points = [100 * point.coverage for point in curve], [100 * point.risk for point in curve]
        axes.plot(*points, "o-", color=color, ms=3, label=label)
    axes.set(xlim=(0, 102), xlabel="pairs decided, %", ylabel="of those wrong, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure_uri(figure)
