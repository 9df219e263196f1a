"""The metrics of a run as curves: thinned so that no spike is lost, on a linear axis, and on a logarithmic one where they span
orders of magnitude."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from rewardlab.reporting.axes import LARGEST, SMALLEST, Axis, Tick, log_axis, value_axis, value_text

MOST_POINTS = 300  # of a curve; a figure is about as many pixels wide
LOG_FROM = 1e2  # the ratio of the highest to the lowest value
_SHARE = re.compile(
    r"_frac(_|$)|(^|[/_])accuracy(_|$)|_recognised$|^(verdict|verifier)/|^reward/format$|win_rate$|swap_consistency$"
)


@dataclass(frozen=True)
class Plot:
    """A line in percent of a figure's area, as the points of an SVG polyline; ``band`` goes from the lowest to the highest
    value of each point, and is "" where every point is one value. A single point is no line: its place is in ``dots``.
    ``limits`` are the ends of a line for each limit of the metric."""

    y_ticks: tuple[Tick, ...]
    points: str
    band: str
    dots: tuple[tuple[float, float], ...]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limit:
    """A value of a metric, from a ``first`` step to a ``last``, beyond which the watchdog sees a sign."""

    first: int
    last: int
    value: float


@dataclass(frozen=True)
class Point:
    """What neighbouring steps come to: the first and last of them, their mean, lowest and highest value."""

    first: int
    last: int
    mean: float
    low: float
    high: float

    @property
    def step(self) -> float:
        """Return where it stands: in the middle of its steps."""
        return (self.first + self.last) / 2


@dataclass(frozen=True)
class Breaks:
    """The steps at which a metric was no number, or one beyond 1e300: how many, the first and the last, their ``places`` in
    percent from the left."""

    count: int
    first: int
    last: int
    places: tuple[float, ...]

    @property
    def words(self) -> str:
        """Return which steps these are."""
        if self.count == 1:
            return f"step {self.first:,}"
        return f"{self.count:,} steps, first {self.first:,}, last {self.last:,}"


@dataclass(frozen=True)
class Curve:
    """A metric over the steps of a run. ``words`` say what ``name`` is. Of each point ``steps`` has where it stands, ``texts``
    its value and steps to read; the last of these stands beside the curve. ``logarithmic`` is None where a value is not above 0
    or all are within a factor of 100; ``is_log`` says which of the two plots is shown at first: that one where half of
    the values are below a hundredth of the highest, and so next to 0 on a linear axis."""

    name: str
    words: str
    steps: tuple[float, ...]
    texts: tuple[str, ...]
    linear: Plot
    logarithmic: Plot | None
    is_log: bool
    is_thinned: bool
    breaks: Breaks | None


def curve(
    name: str, values: Sequence[tuple[int, Any]], x_axis: Axis, words: str = "", limits: Sequence[Limit] = ()
) -> Curve | None:
    """Return the curve of (step, value), None if not one value is a number. Of several values of a step the last counts.
    ``limits`` are drawn on the linear axis, which reaches to them."""
    by_step = sorted(dict(values).items())
    finite = [(step, float(value)) for step, value in by_step if _is_number(value)]
    if not finite:
        return None
    points, unit = thin(finite), unit_of(name)
    low, high = min(point.low for point in points), max(point.high for point in points)
    has_log = low > SMALLEST and high >= LOG_FROM * low
    ends = [low, high, *(limit.value for limit in limits)]
    return Curve(
        name,
        words or name,
        tuple(point.step for point in points),
        tuple(_text(point, unit) for point in points),
        _plot(points, x_axis, value_axis(min(ends), max(ends), unit=unit), limits),
        _plot(points, x_axis, log_axis(low, high, unit=unit)) if has_log else None,
        has_log and high > LOG_FROM * median(point.mean for point in points),
        len(points) < len(finite),
        _breaks([step for step, value in by_step if not _is_number(value)], x_axis),
    )


def thin(values: Sequence[tuple[int, float]], most: int = MOST_POINTS) -> list[Point]:
    """Return at most ``most`` points of (step, value), which are sorted by step; each stands for as many steps, and keeps their
    extremes."""
    if len(values) <= most:
        return [Point(step, step, value, value, value) for step, value in values]
    first, last = values[0][0], values[-1][0]

    def number(item: tuple[int, float]) -> int:
        return min(most - 1, most * (item[0] - first) // (last - first))

    return [_point(list(group)) for _, group in groupby(values, number)]


def _point(values: Sequence[tuple[int, float]]) -> Point:
    numbers = [value for _, value in values]
    mean = math.fsum(number / len(numbers) for number in numbers)
    return Point(values[0][0], values[-1][0], mean, min(numbers), max(numbers))


def unit_of(name: str) -> str:
    """Return the unit of a metric: "%" of a share (0..1), "s" of a duration, "" of what its name says."""
    return "%" if _SHARE.search(name) else "s" if name.endswith("seconds") else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST


def _text(point: Point, unit: str) -> str:
    scale = 100 if unit == "%" else 1
    low, mean, high = (value_text(scale * value, unit) for value in (point.low, point.mean, point.high))
    if point.first == point.last:
        return f"{mean}, step {point.first:,}"
    return f"{mean} ({low} to {high}), steps {point.first:,} to {point.last:,}"


def _plot(points: Sequence[Point], x_axis: Axis, y_axis: Axis, limits: Sequence[Limit] = ()) -> Plot:
    def line(value: Callable[[Point], float]) -> list[tuple[float, float]]:
        return [(x_axis.across(point.step), y_axis.down(value(point))) for point in points]

    means, lows, highs = line(lambda point: point.mean), line(lambda point: point.low), line(lambda point: point.high)
    band = polyline([*highs, *reversed(lows)]) if lows != highs else ""
    ends = ([(x_axis.across(step), y_axis.down(limit.value)) for step in (limit.first, limit.last)] for limit in limits)
    return Plot(y_axis.y_ticks, polyline(means), band, tuple(means) if len(means) == 1 else (), tuple(map(polyline, ends)))


def polyline(places: Sequence[tuple[float, float]]) -> str:
    """Return places as the points of an SVG polyline."""
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def _breaks(steps: Sequence[int], x_axis: Axis) -> Breaks | None:
    if not steps:
        return None
    places = dict.fromkeys(round(2 * x_axis.across(step)) / 2 for step in steps)  # at most 201
    return Breaks(len(steps), steps[0], steps[-1], tuple(places))
