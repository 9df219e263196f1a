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
LETTER = 0.085  # inches, of a label in a wide font
MOST_LETTERS = 24  # of a name beside an axis
MOST_DOTS = 40  # evaluations that have a dot each


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


@dataclass(frozen=True)
class Series:
    """Numbers over the steps of a run, and their label; ``intervals`` to shade, of each number, if any."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    color: str
    intervals: Sequence[Interval] = ()


@dataclass(frozen=True)
class Limit:
    """A value of a metric, from a ``first`` step to a ``last``, beyond which the watchdog reports a sign."""

    first: int
    last: int
    value: float


@dataclass(frozen=True)
class EndLabel:
    """A name at the end of a line, in place of a legend; ``y`` in the axis's unit."""

    text: str
    y: float
    color: str


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
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def _short(name: str, most: int = MOST_LETTERS) -> str:
    """Return a name cut in its middle: paths differ at the end."""
    return name if len(name) <= most else f"{name[:8]}…{name[-(most - 9) :]}"


def _inches(texts: Sequence[str]) -> float:
    return LETTER * max((len(line) for text in texts for line in text.split("\n")), default=0)


def _fit(axes: Any, *, left: float = 0.7, right: float = 0.2, top: float = 0.15, bottom: float = 0.55) -> None:
    """Place the axes within a figure of fixed size, so that letters are as large in every figure; margins in inches."""
    width, height = axes.figure.get_size_inches()
    axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))


def _label_ends(axes: Any, labels: Sequence[EndLabel]) -> None:
    """Write names right of the axes at the height of their lines, moved apart where they would overlap."""
    _fit(axes, right=_inches([label.text for label in labels]) + 0.2)
    bottom, top = axes.get_ylim()
    inches = axes.figure.get_size_inches()[1] * axes.get_position().height
    heights = [0.19 * (label.text.count("\n") + 1) / inches * (top - bottom) for label in labels]
    order = sorted(range(len(labels)), key=lambda n: labels[n].y)
    places: dict[int, float] = {}
    edge = bottom
    for n in order:  # upwards, each above the one below
        places[n] = max(labels[n].y, edge + heights[n] / 2)
        edge = places[n] + heights[n] / 2
    edge = max(top, max((labels[n].y for n in order), default=top))
    for n in reversed(order):  # and down from the top
        places[n] = min(places[n], edge - heights[n] / 2)
        edge = places[n] - heights[n] / 2
    for n, label in enumerate(labels):
        axes.annotate(
            label.text,
            (1, places[n]),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            color=label.color,
            va="center",
            fontsize=10.5,
            annotation_clip=False,
        )


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
    _fit(axes, left=_inches(short) + 0.25, right=_inches(numbers) + 0.25, top=0.3)
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


def plot_curve(lines: Sequence[Line], stopping: Line | None, *, xlabel: str = "samples per pair") -> Figure:
    """Draw accuracy against samples per pair, a line per aggregation; ``stopping`` is dashed, without intervals."""
    figure, axes = _axes()
    labels = []
    for line in lines:
        percents = [100 * point.accuracy for point in line.points]
        axes.plot(line.samples, percents, "o-", color=line.color, ms=5)
        low, high = ([100 * p.interval[side] for p in line.points] for side in (0, 1))
        axes.fill_between(line.samples, low, high, alpha=0.15, color=line.color, lw=0)
        labels.append(EndLabel(line.label, percents[-1], line.color))
    if stopping is not None and stopping.points:
        percents = [100 * point.accuracy for point in stopping.points]
        axes.plot(stopping.samples, percents, "D--", color=stopping.color, ms=5)
        labels.append(EndLabel(stopping.label, percents[-1], stopping.color))
    axes.set(xlabel=xlabel, ylabel="accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_ylim()[0] < 52:
        _chance(axes, horizontal=True)
    _label_ends(axes, labels)
    return figure


def plot_series(series: Sequence[Series], *, xlabel: str, ylabel: str = "") -> Figure:
    """Draw numbers over the steps of a run, each line with its name."""
    figure, axes = _axes()
    labels = []
    for one in series:
        axes.plot(one.steps, one.values, "o" if len(one.steps) == 1 else "-", color=one.color)
        labels.append(EndLabel(one.label, one.values[-1], one.color))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _label_ends(axes, labels)
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
    borders: Sequence[int] = (),
) -> Figure:
    """Draw a metric over the steps between ``ends``, shaded from its lowest to its highest values; ``limits`` are dashed,
    ``borders`` vertical lines, breaks marks on the axis."""
    figure, axes = _axes(*SMALL)
    _fit(axes, left=0.72, right=0.12, top=0.12, bottom=0.42)
    single = len(points.steps) == 1
    axes.plot(points.steps, points.mean, "o" if single else "-", color=INK, lw=1.6, clip_on=False)
    if list(points.low) != list(points.high):
        axes.fill_between(points.steps, points.low, points.high, color=INK, alpha=0.25, lw=0)
    for limit in limits:
        axes.plot([limit.first, limit.last], [limit.value] * 2, color=WARM, lw=1.2, ls=(0, (4, 3)))
    for border in borders:
        axes.axvline(border, color=SOFT, lw=1.2)
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


def plot_evaluations(lines: Sequence[Series], best: tuple[int, float]) -> Figure:
    """Draw fractions (0..1) of held-out pairs over the steps of a run, beside chance; ``best``, the step and value of the best
    evaluation, has a ring."""
    figure, axes = _axes()
    labels = []
    for line in lines:
        percents = [100 * value for value in line.values]
        axes.plot(line.steps, percents, "o-" if len(line.steps) <= MOST_DOTS else "-", color=line.color, ms=4)
        if line.intervals:
            low, high = ([100 * interval[side] for interval in line.intervals] for side in (0, 1))
            axes.fill_between(line.steps, low, high, alpha=0.15, color=line.color, lw=0)
            if len(line.steps) == 1:
                axes.vlines(line.steps, low, high, color=line.color, alpha=0.4)
        labels.append(EndLabel(line.label, percents[-1], line.color))
    axes.plot(best[0], 100 * best[1], "o", ms=10, mfc="none", mec=INK, mew=1.5)
    axes.set(xlabel="step", ylabel="held-out pairs, %", ylim=(min(axes.get_ylim()[0], 46), max(axes.get_ylim()[1], 54)))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _chance(axes, horizontal=True)
    _label_ends(axes, labels)
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
    medians = [f"{characters:+,}" for characters, _ in cells]
    labels = [f"{text}\nfifth {n}" if medians.count(text) > 1 else text for n, text in enumerate(medians, 1)]
    axes.set(xticks=places, xticklabels=labels, ylim=(0, 100))
    axes.set(xlabel="better response is longer by, characters", ylabel="accuracy, %")
    axes.grid(visible=False, axis="x")
    _fit(axes, bottom=0.75 if labels != medians else 0.55)
    _chance(axes, horizontal=True)
    return figure


def plot_reliability(confidences: Mapping[str, Sequence[Bin]]) -> Figure:
    """Draw accuracy against confidence, by the confidence's label; a point's area is its number of pairs."""
    figure, axes = _axes()
    axes.plot([50, 100], [50, 100], color=SOFT, ls=(0, (4, 3)), lw=1)
    axes.annotate("exact", (60, 60), color=SOFT, fontsize=9.5, xytext=(6, -10), textcoords="offset points")
    labels = []
    for (label, bins), color in zip(confidences.items(), (INK, WARM), strict=False):
        if not bins:
            continue
        total = sum(cell.count for cell in bins)
        points = [100 * cell.predicted for cell in bins], [100 * cell.happened for cell in bins]
        axes.plot(*points, "-", color=color, lw=1)
        axes.scatter(*points, s=[20 + 400 * cell.count / total for cell in bins], color=color, alpha=0.6, lw=0, clip_on=False)
        labels.append(EndLabel(label, points[1][-1], color))
    axes.set(xlim=(48, 102), xlabel="confidence in the response named, %", ylabel="right, %")
    _label_ends(axes, labels)
    return figure


def plot_risk(curves: Mapping[str, Sequence[RiskPoint]]) -> Figure:
    """Draw the error rate among the decided pairs against their fraction, by the confidence's label."""
    figure, axes = _axes()
    labels = []
    for (label, curve), color in zip(curves.items(), (INK, WARM), strict=False):
        if not curve:
            continue
        points = [100 * point.coverage for point in curve], [100 * point.risk for point in curve]
        axes.plot(*points, "o-", color=color, ms=4, clip_on=False)
        labels.append(EndLabel(label, points[1][-1], color))
    axes.set(xlim=(0, 102), xlabel="pairs decided, %", ylabel="of those wrong, %")
    axes.set_ylim(bottom=0)
    _label_ends(axes, labels)
    return figure
