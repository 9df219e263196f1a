"""The evaluations of a training run as one figure: accuracy over the steps with its interval, both orders, grey images, chance.

Of very many evaluations some are left out, evenly spread; the first, the last and the best are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardlab.reporting.axes import Axis, Tick, step_axis, value_axis
from rewardlab.reporting.curves import polyline

PREFIX = "eval/"
LINES = {  # of shares of pairs, in the order in which they are drawn
    "blank_accuracy": "with grey images",
    "consistent_accuracy": "right in both orders",
    "accuracy": "accuracy over both orders",
}
BANDS = ("accuracy", "blank_accuracy")  # whose intervals are shaded: a third would hide them
MOST_DOTS, MOST_ROWS = 40, 240
ALONE = 0.6  # half the width of the interval of a single evaluation, in percent
TOO_NEAR = 9.0  # percent of the height, between two labels
SMALL = {  # beside it, as curves of their own
    "swap_consistency": "both orders name the same",
    "invalid_frac": "judgments without a verdict",
    "first_frac": "verdicts for the first",
    "mean_length": "tokens per judgment",
}


@dataclass(frozen=True)
class EvaluationLine:
    """A share over the steps: ``points`` and ``band`` (its intervals; "" where they are not drawn) of an SVG of 100 x 100,
    ``dots`` its places in percent, ``texts`` its values with their intervals, at every evaluation, the newest last."""

    name: str
    words: str
    points: str
    band: str
    dots: tuple[tuple[float, float], ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationFigure:
    """``chance`` is the place of 50 % in percent from the top; ``best`` is the step of the best evaluation by ``metric``, with
    its value; ``rows`` are those of the ``count`` evaluations that are drawn, the newest last."""

    lines: tuple[EvaluationLine, ...]
    x_axis: Axis
    y_ticks: tuple[Tick, ...]
    chance: float
    best: tuple[int, str]
    metric: str
    rows: tuple[Mapping[str, Any], ...]
    count: int

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps of the evaluations that are drawn."""
        return tuple(row["step"] for row in self.rows)

    @property
    def step_texts(self) -> tuple[str, ...]:
        """Return the names of :attr:`steps`."""
        return tuple(f"step {step:,}" for step in self.steps)

    @property
    def best_dot(self) -> tuple[str, float, float]:
        """Return the line that the best evaluation is marked on, and its place."""
        line = next(line for line in self.lines if line.name == self.metric)
        return line.name, *line.dots[self.steps.index(self.best[0])]

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


def evaluation_figure(metrics: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> EvaluationFigure | None:
    """Return the figure of a run's evaluations, None where it has none."""
    if not (evaluations := evaluation_rows(metrics)):
        return None
    best = max(evaluations, key=lambda row: (row.get(PREFIX + metric, 0.0), -row["step"]))
    rows = _some(evaluations, best)
    seen = [value for row in rows for value in _shares(row)]
    x_axis, y_axis = step_axis(rows[0]["step"], rows[-1]["step"], 5), value_axis(min(seen), max(seen), unit="%", most=6)
    lines = (_line(name, words, rows, x_axis, y_axis) for name, words in LINES.items())
    chance = Tick("chance", y_axis.down(0.5))
    round_ones = [tick for tick in y_axis.y_ticks if abs(tick.place - chance.place) > TOO_NEAR]
    return EvaluationFigure(
        tuple(line for line in lines if line is not None),
        x_axis,
        tuple(sorted([chance, *round_ones], key=lambda tick: -tick.place)),
        chance.place,
        (best["step"], share_text(best, metric)),
        metric,
        tuple(rows),
        len(evaluations),
    )


def _some(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return at most :data:`MOST_ROWS` rows and the best one, evenly spread, the first and the last among them."""
    every = max(1.0, (len(rows) - 1) / (MOST_ROWS - 1))
    numbers = {round(number * every) for number in range(min(len(rows), MOST_ROWS))}
    return [row for number, row in enumerate(rows) if number in numbers or row is best]


def _shares(row: Mapping[str, Any]) -> Iterator[float]:
    yield 0.5  # chance is always in sight
    for name in LINES:
        for end in ("", "_low", "_high") if name in BANDS else ("",):
            if (value := row.get(f"{PREFIX}{name}{end}")) is not None:
                yield value


def _line(name: str, words: str, rows: Sequence[Mapping[str, Any]], x_axis: Axis, y_axis: Axis) -> EvaluationLine | None:
    known = [row for row in rows if PREFIX + name in row]
    if not known:
        return None
    dots = tuple((x_axis.across(row["step"]), y_axis.down(row[PREFIX + name])) for row in known)
    texts = tuple(share_text(row, name) for row in rows)
    return EvaluationLine(name, words, polyline(dots), _band(name, known, x_axis, y_axis), dots, texts)


def _band(name: str, rows: Sequence[Mapping[str, Any]], x_axis: Axis, y_axis: Axis) -> str:
    if name not in BANDS:
        return ""
    low, high = (
        [(x_axis.across(row["step"]), y_axis.down(row[f"{PREFIX}{name}_{end}"])) for row in rows] for end in ("low", "high")
    )
    if len(rows) == 1:  # else it would have no width
        low, high = ([(x - ALONE, y), (x + ALONE, y)] for [(x, y)] in (low, high))
    return polyline([*low, *reversed(high)])
