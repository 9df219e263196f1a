"""Axes of the figures that pages draw themselves: round ticks with their units, linear or logarithmic, places in percent.

Places are percentages of a figure's area, so that it may have any width; labels are text beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LARGEST, SMALLEST = 1e300, 1e-300  # beyond them, differences are infinite, or 0
SAME = 1e-9  # numbers that differ by less than this share of their size are drawn as one


@dataclass(frozen=True)
class Tick:
    """A label and its place in percent: from the left, or from the top."""

    label: str
    place: float


@dataclass(frozen=True)
class Axis:
    """From a value to its place in percent, between the ends ``low`` and ``high``; in logarithms where ``is_log``."""

    low: float
    high: float
    values: tuple[float, ...]
    labels: tuple[str, ...]
    is_log: bool = False

    def across(self, value: float) -> float:
        """Return the place of a value from the left; the middle where the axis has no length."""
        low, high, at = (math.log10(n) if self.is_log else n for n in (self.low, self.high, value))
        return round(100 * (at - low) / (high - low), 2) if high > low else 50.0

    def down(self, value: float) -> float:
        """Return the place of a value from the top."""
        return round(100 - self.across(value), 2)

    @property
    def x_ticks(self) -> tuple[Tick, ...]:
        """Return the ticks of a horizontal axis."""
        return tuple(Tick(label, self.across(value)) for label, value in zip(self.labels, self.values, strict=True))

    @property
    def y_ticks(self) -> tuple[Tick, ...]:
        """Return the ticks of a vertical axis."""
        return tuple(Tick(label, self.down(value)) for label, value in zip(self.labels, self.values, strict=True))


def step_axis(first: int, last: int, most: int = 4) -> Axis:
    """Return the axis of the steps of a run, which ends where the run does; ticks are whole numbers, ``most`` intervals."""
    every = max(1, round(_round_interval((last - first) / most)))
    ticks = tuple(range(-(-first // every) * every, last + 1, every)) if last > first else (first,)
    return Axis(first, last, tuple(map(float, ticks)), tuple(f"{tick:,}" for tick in ticks))


def value_axis(low: float, high: float, *, unit: str = "", most: int = 4) -> Axis:
    """Return an axis that ends at round numbers around ``low`` and ``high``, at most some ``most`` intervals apart.

    ``unit`` is written behind the labels; with "%" the values are shares, 0..1, and the labels percentages.
    """
    if high - low <= max(SMALLEST, SAME * max(abs(low), abs(high))):
        low, high = _around(low, is_share=unit == "%")
    every = _round_interval((high - low) / most)
    ends = math.floor(low / every + SAME), math.ceil(high / every - SAME)
    values = tuple(number * every for number in range(ends[0], ends[1] + 1))
    scale = 100 if unit == "%" else 1
    return Axis(values[0], values[-1], values, tuple(f"{text}{unit and ' ' + unit}" for text in _tick_texts(values, scale)))


def log_axis(low: float, high: float, *, unit: str = "", most: int = 4) -> Axis:
    """Return a logarithmic axis that ends at powers of ten around ``low`` and ``high``, both above 0."""
    first, last = math.floor(math.log10(low) + SAME), math.ceil(math.log10(high) - SAME)
    last = max(last, first + 1)
    every = math.ceil((last - first) / most)
    powers = range(first, last + 1, every)
    scale = 100 if unit == "%" else 1
    labels = tuple(value_text(10.0**power * scale, unit) for power in powers)
    return Axis(10.0**first, 10.0**last, tuple(10.0**power for power in powers), labels, is_log=True)


def value_text(value: float, unit: str = "") -> str:
    """Return a number in four digits with its unit: 1,234 or 0.001234 or 1.234e-6. It is in that unit already: a share has been
    multiplied by 100."""
    size = math.floor(math.log10(abs(value))) if value else 0
    if -4 < size < 6:
        text = f"{value:,.{max(0, 3 - size)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = _short_exponent(f"{value:.3e}")
    return f"{text}{unit and ' ' + unit}"


def _around(value: float, *, is_share: bool) -> tuple[float, float]:
    """Return the ends of an axis for a single number, with 0 at one of them: its line is about the middle. A share has 0..1."""
    if abs(value) < SMALLEST or (is_share and 0 <= value <= 1):
        return 0.0, 1.0
    return min(0.0, 2 * value), max(0.0, 2 * value)


def _round_interval(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least ``least``."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - SAME))


def _tick_texts(values: Sequence[float], scale: float) -> list[str]:
    """Return numbers at equal distance, all with as many decimals as tell them apart."""
    numbers = [value * scale for value in values]
    finest, largest = math.floor(math.log10(numbers[1] - numbers[0]) + SAME), max(map(abs, numbers))
    if finest < -4 or largest >= 1e6:
        digits = max(0, math.floor(math.log10(largest)) - finest)
        return [_short_exponent(f"{number:.{digits}e}") if number else "0" for number in numbers]
    return [f"{number + 0.0:,.{max(0, -finest)}f}" for number in numbers]


def _short_exponent(text: str) -> str:
    """1.200e-06 as 1.2e-6."""
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"
