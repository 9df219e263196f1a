"""The evaluations of a training run as one figure: accuracy over the steps with its interval, both orders, grey images, chance.

The places are percentages of the figure's area, so that it may have any width; its labels are text beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "eval/"
LINES = {  # of shares of pairs, in the order in which they are drawn
    "blank_accuracy": "with grey images",
    "consistent_accuracy": "right in both orders",
    "accuracy": "accuracy over both orders",
}
BANDS = ("accuracy", "blank_accuracy")  # whose intervals are shaded: a third would hide them
MOST_DOTS = 40
ALONE = 0.6  # half the width of the interval of a single evaluation, in percent
SMALL = {  # beside it, as curves of their own
    "swap_consistency": "both orders name the same, share",
    "invalid_frac": "judgments without a verdict, share",
    "first_frac": "verdicts for the first, share",
    "mean_length": "tokens per judgment",
}


@dataclass(frozen=True)
class EvaluationLine:
    """A share over the steps: ``points`` and ``band`` (its intervals; "" where they are not drawn) of an SVG of 100 x 100,
    ``dots`` its places in percent, ``last`` the newest value with its interval."""

    name: str
    words: str
    points: str
    band: str
    dots: tuple[tuple[float, float], ...]
    last: str


@dataclass(frozen=True)
class EvaluationFigure:
    """``y_ticks`` and ``x_ticks`` are (label, place in percent from the top, from the left); ``best`` is the step of the best
    evaluation by ``metric``, with its value; ``rows`` are all of them, the newest last."""

    lines: tuple[EvaluationLine, ...]
    y_ticks: tuple[tuple[str, float], ...]
    x_ticks: tuple[tuple[str, float], ...]
    chance: float
    best: tuple[int, str]
    metric: str
    rows: tuple[Mapping[str, Any], ...]

    @property
    def best_dot(self) -> tuple[str, float, float]:
        """Return the line that the best evaluation is marked on, and its place."""
        line = next(line for line in self.lines if line.name == self.metric)
        return line.name, *line.dots[[row["step"] for row in self.rows].index(self.best[0])]

    @property
    def has_dots(self) -> bool:
        """Return whether there is room for a dot an evaluation."""
        return len(self.rows) <= MOST_DOTS


def evaluation_rows(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines of a run's log that are evaluations."""
    return [row for row in metrics if f"{PREFIX}accuracy" in row]


def share_text(row: Mapping[str, Any], name: str) -> str:
    """Return a share in percent with its interval, as far as a row has them."""
    if (value := row.get(PREFIX + name)) is None:
        return "–"
    low, high = (row.get(f"{PREFIX}{name}_{end}") for end in ("low", "high"))
    return f"{100 * value:.1f}" + ("" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]")


@dataclass(frozen=True)
class Frame:
    """From a step and a share to their places in percent."""

    steps: tuple[int, int]
    shares: tuple[float, float]

    def x(self, step: float) -> float:
        first, last = self.steps
        return 50.0 if first == last else round(100 * (step - first) / (last - first), 2)

    def y(self, share: float) -> float:
        low, high = self.shares
        return round(100 * (high - share) / (high - low), 2)


def evaluation_figure(metrics: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> EvaluationFigure | None:
    """Return the figure of a run's evaluations, None where it has none."""
    if not (rows := evaluation_rows(metrics)):
        return None
    seen = [value for row in rows for value in _shares(row)]
    low, high = (rounded(10 * share) / 10 for rounded, share in ((math.floor, min(seen)), (math.ceil, max(seen))))
    frame = Frame((rows[0]["step"], rows[-1]["step"]), (low, high) if low < high else (max(0.0, low - 0.1), low + 0.1))
    best = max(rows, key=lambda row: (row.get(PREFIX + metric, 0.0), -row["step"]))
    lines = (_line(name, words, rows, frame) for name, words in LINES.items())
    return EvaluationFigure(
        tuple(line for line in lines if line is not None),
        tuple(
            ("chance" if round(share, 2) == 0.5 else f"{100 * share:.0f} %", frame.y(share)) for share in _ticks(*frame.shares)
        ),
        tuple((f"{step:,}", frame.x(step)) for step in _steps_shown([row["step"] for row in rows])),
        frame.y(0.5),
        (best["step"], share_text(best, metric)),
        metric,
        tuple(rows),
    )


def _shares(row: Mapping[str, Any]) -> Iterator[float]:
    yield 0.5  # chance is always in sight
    for name in LINES:
        for end in ("", "_low", "_high") if name in BANDS else ("",):
            if (value := row.get(f"{PREFIX}{name}{end}")) is not None:
                yield value


def _line(name: str, words: str, rows: Sequence[Mapping[str, Any]], frame: Frame) -> EvaluationLine | None:
    known = [row for row in rows if PREFIX + name in row]
    if not known:
        return None
    dots = tuple((frame.x(row["step"]), frame.y(row[PREFIX + name])) for row in known)
    return EvaluationLine(name, words, _polyline(dots), _band(name, known, frame), dots, share_text(known[-1], name))


def _band(name: str, rows: Sequence[Mapping[str, Any]], frame: Frame) -> str:
    if name not in BANDS:
        return ""
    low, high = ([(frame.x(row["step"]), frame.y(row[f"{PREFIX}{name}_{end}"])) for row in rows] for end in ("low", "high"))
    if len(rows) == 1:  # else it would have no width
        low, high = ([(x - ALONE, y), (x + ALONE, y)] for [(x, y)] in (low, high))
    return _polyline([*low, *reversed(high)])


def _polyline(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def _ticks(low: float, high: float) -> list[float]:
    """Return round shares from low to high, chance among them; none so near to it that their labels would touch."""
    every = 0.1 if high - low <= 0.55 else 0.2
    first = math.ceil(low / every - 1e-9)
    round_ones = [n * every for n in range(first, math.floor(high / every + 1e-9) + 1)]
    return sorted([0.5, *(share for share in round_ones if abs(share - 0.5) > 0.06)])


def _steps_shown(steps: Sequence[int], most: int = 5) -> list[int]:
    """Return the first step, the last, and some between."""
    if len(steps) <= most:
        return sorted(set(steps))
    return sorted({steps[round(n * (len(steps) - 1) / (most - 1))] for n in range(most)})
