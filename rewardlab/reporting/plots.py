"""The figures of reports and runs, drawn by matplotlib: inside a page, light or dark, or in a file."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from rewardlab.metrics.calibration import Bin, RiskPoint
from rewardlab.metrics.intervals import Interval
from rewardlab.reporting.tables import percent, with_interval

# Colours on a light page, and on a dark one; the reader's setting decides, within the picture.
INK, WARM, LEAF, GOLD = "#2f5cc4", "#b3452c", "#1a7440", "#8f5509"
TEXT, SOFT, GRID = "#1d2530", "#5a6675", "#dde3ea"
DARK = {
    INK: "#8fb0ff",
    WARM: "#ff9d86",
    LEAF: "#6fd198",
    GOLD: "#efb266",
    TEXT: "#e4e9f0",
    SOFT: "#9ca9b8",
    GRID: "#313b48",
}
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
STYLE: Any = {
    "text.parse_math": False,  # names of groups and judges are text, dollars and all
    "svg.fonttype": "none",  # text in the reader's font, and the same size at any width
    "svg.hashsalt": "rewardlab",  # the same figure is the same file
    "font.size": 11,
    "text.color": TEXT,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 10.5,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
}
matplotlib.rcParams.update(STYLE)
WIDE, LOW = 5.0, 3.0  # inches: 480 px, the width of a column of a page with two
SMALL = (3.1, 1.75)  # inches: a metric among others
LETTER = 0.085  # inches, of a letter in a wide font
MOST_LETTERS = 24  # of a name beside an axis
MOST_DOTS = 40  # evaluations that have a dot each


class Measured(Protocol):
    """An accuracy (0..1) with its interval."""

    @property
    def accuracy(self) -> float: ...

    @property
    def interval(self) -> Interval: ...


@dataclass(frozen=True)
class Series:
    """A labelled line: values at numbers on the x-axis, such as steps or samples; ``intervals`` to shade, of each value, if
    any."""

    label: str
    x: Sequence[float]
    values: Sequence[float]
    color: str
    intervals: Sequence[Interval] = ()
    is_dashed: bool = False

    @staticmethod
    def of(label: str, x: Sequence[float], points: Sequence[Measured], color: str) -> Series:
        """Return the accuracies of ``points`` with their intervals."""
        return Series(label, x, [point.accuracy for point in points], color, [point.interval for point in points])


@dataclass(frozen=True)
class Limit:
    """A value of a metric, from a ``first`` step to a ``last``, beyond which the watchdog reports a sign."""

    first: int
    last: int
    value: float


def figure_uri(figure: Figure) -> str:
    """Return a figure as an SVG data URL that follows the reader's light or dark setting, on the page's background. Colours
    that are not in :data:`DARK` do not change."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    rules = ["", ""]
    for number, (light, dark) in enumerate(DARK.items()):
        svg = svg.replace(light, f"var(--c{number})")
        rules = [f"{rule}--c{number}:{color};" for rule, color in zip(rules, (light, dark), strict=True)]
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # a smaller file, equal to the eye
    style = f":root{{{rules[0]}}}@media (prefers-color-scheme:dark){{:root{{{rules[1]}}}}}text{{font-family:{FONTS}!important}}"
    svg = svg.replace("<defs>", f"<style>{style}</style><defs>", 1)
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


SUFFIXES = (".svg", ".pdf", ".png")  # of the files that a figure can be


def save_figure(figure: Figure, path: Path, *, dpi: int = 200) -> None:
    """Write a figure on white to a file of one of :data:`SUFFIXES`, reproducibly; ``dpi`` is for .png. Letters are outlines in
    .svg and embedded in .pdf. Raise ValueError for another suffix."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    undated: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[path.suffix]
    with matplotlib.rc_context({"svg.fonttype": "path", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=dpi, facecolor="white", metadata=undated)


def _axes(width: float = WIDE, height: float = LOW) -> tuple[Figure, Any]:
    """Return a figure of this many inches, outside of pyplot's registry, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _short(name: str, most: int = MOST_LETTERS) -> str:
    """Return a name cut in its middle: paths differ at the end."""
    return name if len(name) <= most else f"{name[:8]}…{name[-(most - 9) :]}"


def _legend(figure: Figure) -> None:
    """Name the lines right of the axes, in their colours."""
    figure.legend(loc="outside right center", labelcolor="linecolor", frameon=False, handlelength=1, fontsize=10.5)


def _chance(axes: Any, *, horizontal: bool) -> None:
    """Draw the line of a guesser, with its name."""
    dashed: Any = {"color": SOFT, "ls": (0, (4, 3)), "lw": 1}
    text: Any = {"textcoords": "offset points", "color": SOFT, "fontsize": 9.5}
    if horizontal:
        axes.axhline(50, **dashed)
        axes.annotate("chance", (0, 50), xycoords=("axes fraction", "data"), xytext=(4, 3), **text)
    else:
        axes.axvline(50, **dashed)
        axes.annotate("chance 50", (50, 0), xycoords=("data", "axes fraction"), xytext=(-4, 4), **text, ha="right")


def _rows(names: Sequence[str], numbers: Sequence[str], width: float = WIDE, least: float = LOW) -> tuple[Figure, Any]:
    """Return a figure with a row per name, the first on top, and its number on the right; names take half of a greater width.
    ``least``: the least height in inches."""
    figure, axes = _axes(width, max(least, 0.34 * len(names) + 1.15))
    short = [_short(name, MOST_LETTERS + int(max(0.0, width - WIDE) / 2 / LETTER)) for name in names]
    axes.set(yticks=range(len(names)), yticklabels=short, ylim=(len(names) - 0.1, -0.6))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for place, number in enumerate(numbers):
        where: Any = {"xycoords": ("axes fraction", "data"), "xytext": (10, 0), "textcoords": "offset points"}
        axes.annotate(number, (1, place), **where, va="center", fontsize=10.5, annotation_clip=False)
    return figure, axes


def plot_accuracies(
    cells: Mapping[str, Measured], baseline: tuple[str, float], *, width: float = WIDE, least: float = LOW
) -> Figure:
    """Draw accuracies by name with their intervals, beside chance and a baseline's (name, accuracy); ``width`` and ``least``
    height in inches."""
    figure, axes = _rows(list(cells), [with_interval(cell.accuracy, cell.interval) for cell in cells.values()], width, least)
    for place, cell in enumerate(cells.values()):
        low, high = cell.interval
        axes.plot([100 * low, 100 * high], [place, place], color=INK, lw=3, alpha=0.45, clip_on=False)
        axes.plot(100 * cell.accuracy, place, "o", color=INK, ms=7, clip_on=False)
    sides = [50.0, 100 * baseline[1], *(100 * side for cell in cells.values() for side in cell.interval)]
    pad = max(2.0, 0.06 * (max(sides) - min(sides)))
    left = min(min(sides) - pad, 50 - 3 * pad)  # room for the name of the line at 50
    axes.set(xlim=(max(0.0, left), min(100.0, max(sides) + pad)), xlabel="accuracy, % [95 % interval]")
    _chance(axes, horizontal=False)
    axes.axvline(100 * baseline[1], color=WARM, ls=":", lw=1.8)
    is_right = 100 * baseline[1] > sum(axes.get_xlim()) / 2
    axes.annotate(
        f"best baseline: {baseline[0]} {100 * baseline[1]:.1f}",
        (100 * baseline[1], 1),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if is_right else 4, 2),
        textcoords="offset points",
        color=WARM,
        fontsize=9.5,
        ha="right" if is_right else "left",
        annotation_clip=False,
    )
    return figure


def plot_series(series: Sequence[Series], *, xlabel: str) -> Figure:
    """Draw numbers over the steps of a run, each line with its name."""
    figure, axes = _axes()
    for one in series:
        axes.plot(one.x, one.values, "o" if len(one.x) == 1 else "-", color=one.color, label=one.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel=xlabel)
    _legend(figure)
    return figure


def plot_fractions(
    series: Sequence[Series], *, xlabel: str, ylabel: str = "accuracy, %", best: tuple[float, float] | None = None
) -> Figure:
    """Draw fractions (0..1) as percentages with their intervals, and chance if that is near; ``best`` (x, value) has a
    ring."""
    figure, axes = _axes()
    for line in series:
        percents, marker = [100 * value for value in line.values], "o" if len(line.x) <= MOST_DOTS else ""
        axes.plot(line.x, percents, f"{marker}{'--' if line.is_dashed else '-'}", color=line.color, ms=4, label=line.label)
        if line.intervals:
            low, high = ([100 * interval[side] for interval in line.intervals] for side in (0, 1))
            axes.fill_between(line.x, low, high, alpha=0.15, color=line.color, lw=0)
            if len(line.x) == 1:
                axes.vlines(line.x, low, high, color=line.color, alpha=0.4)
    if best is not None:
        axes.plot(best[0], 100 * best[1], "o", ms=10, mfc="none", mec=INK, mew=1.5)
        axes.set_ylim(min(axes.get_ylim()[0], 46), max(axes.get_ylim()[1], 54))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if axes.get_ylim()[0] < 52:
        _chance(axes, horizontal=True)
    _legend(figure)
    return figure


@dataclass(frozen=True)
class MetricPoints:
    """A metric over steps, thinned: each point has a place, and the mean, lowest and highest value of its steps. ``breaks`` are
    steps without a number."""

    steps: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    breaks: Sequence[int] = ()


def plot_metric(
    points: MetricPoints,
    ends: tuple[int, int],
    *,
    is_fraction: bool = False,
    is_log: bool = False,
    limits: Sequence[Limit] = (),
) -> Figure:
    """Draw a metric over the steps between ``ends``, shaded from its lowest to its highest values; ``limits`` are dashed,
    breaks are marks on the axis."""
    figure, axes = _axes(*SMALL)
    single = len(points.steps) == 1
    axes.plot(points.steps, points.mean, "o" if single else "-", color=INK, lw=1.6, clip_on=False)
    if list(points.low) != list(points.high):
        axes.fill_between(points.steps, points.low, points.high, color=INK, alpha=0.25, lw=0)
    for limit in limits:
        axes.plot([limit.first, limit.last], [limit.value] * 2, color=WARM, lw=1.2, ls=(0, (4, 3)))
    marks = [place for step in points.breaks for place in (step, step, math.nan)]
    axes.plot(marks, [0, 0.08, math.nan] * len(points.breaks), color=WARM, lw=1.2, transform=axes.get_xaxis_transform())
    if is_log:
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    if is_fraction and not is_log:
        axes.set_ylim(0, max(0.02, 1.05 * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0) if is_fraction else "{x:.5g}")
    margin = 0.02 * (ends[1] - ends[0]) or 0.5
    axes.set_xlim(ends[0] - margin, ends[1] + margin)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.tick_params(labelsize=8.5)
    axes.set_xlabel("step", fontsize=8.5, labelpad=1)
    return figure


Lean = tuple[float | None, Interval | None]


def plot_position(leans: Mapping[str, Lean]) -> Figure:
    """Draw the fraction of valid verdicts for the first response, by name, from its position bias (the fraction minus one half)
    and the interval of that; None of either is not drawn."""
    figure, axes = _rows(list(leans), [_share_of_first(lean) for lean in leans.values()])
    ends = [end for bias, interval in leans.values() for end in (bias, *(interval or ())) if end is not None]
    widest = max([10.0, *(100 * abs(end) for end in ends)])
    for place, (bias, interval) in enumerate(leans.values()):
        if bias is not None:
            if interval is not None:
                sides = [50 + 100 * end for end in interval]
                axes.plot(sides, [place, place], color=WARM, lw=3, alpha=0.45, clip_on=False)
            axes.plot(50 + 100 * bias, place, "o", color=WARM, ms=7, clip_on=False)
    axes.axvline(50, color=SOFT, ls=(0, (4, 3)), lw=1)
    axes.set(xlim=(50 - 1.1 * widest, 50 + 1.1 * widest), xlabel="verdicts for the response shown first, %")
    return figure


def _share_of_first(lean: Lean) -> str:
    bias, interval = lean
    if bias is None:
        return "–"
    return percent(0.5 + bias) if interval is None else with_interval(0.5 + bias, [0.5 + end for end in interval])


def plot_length(cells: Sequence[tuple[int, Measured]]) -> Figure:
    """Draw accuracy by difference in length, (characters, accuracy) each."""
    figure, axes = _axes()
    places = range(len(cells))
    for place, (_, cell) in zip(places, cells, strict=True):
        axes.plot([place, place], [100 * side for side in cell.interval], color=INK, lw=3, alpha=0.45, clip_on=False)
    axes.plot(places, [100 * cell.accuracy for _, cell in cells], "o-", color=INK, clip_on=False)
    axes.set(xticks=places, xticklabels=[f"{characters:+,}" for characters, _ in cells], ylim=(0, 100))
    axes.set(xlabel="better response is longer by, characters", ylabel="accuracy, %")
    axes.grid(visible=False, axis="x")
    _chance(axes, horizontal=True)
    return figure


def plot_reliability(confidences: Mapping[str, Sequence[Bin]]) -> Figure:
    """Draw accuracy against confidence, by the confidence's label; a point's area is its number of pairs."""
    figure, axes = _axes()
    axes.plot([50, 100], [50, 100], color=SOFT, ls=(0, (4, 3)), lw=1)
    axes.annotate("exact", (60, 60), color=SOFT, fontsize=9.5, xytext=(6, -10), textcoords="offset points")
    for (label, bins), color in zip(confidences.items(), (INK, WARM), strict=False):
        if not bins:
            continue
        total = sum(cell.count for cell in bins)
        points = [100 * cell.predicted for cell in bins], [100 * cell.happened for cell in bins]
        axes.plot(*points, "-", color=color, lw=1, label=label)
        axes.scatter(*points, s=[20 + 400 * cell.count / total for cell in bins], color=color, alpha=0.6, lw=0, clip_on=False)
    axes.set(xlim=(48, 102), xlabel="confidence in the response named, %", ylabel="right, %")
    _legend(figure)
    return figure


def plot_risk(curves: Mapping[str, Sequence[RiskPoint]]) -> Figure:
    """Draw the error rate among the decided pairs against their fraction, by the confidence's label."""
    figure, axes = _axes()
    for (label, curve), color in zip(curves.items(), (INK, WARM), strict=False):
        if not curve:
            continue
        points = [100 * point.coverage for point in curve], [100 * point.risk for point in curve]
        axes.plot(*points, "o-", color=color, ms=4, clip_on=False, label=label)
    axes.set(xlim=(0, 102), xlabel="pairs decided, %", ylabel="of those wrong, %")
    axes.set_ylim(bottom=0)
    _legend(figure)
    return figure
