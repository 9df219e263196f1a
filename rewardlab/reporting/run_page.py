"""A training run to look at: curves of every term, rollouts over time, and what the watchdog saw, on one page."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup, escape

from rewardlab.reporting.evaluation_figure import PREFIX, SMALL, evaluation_figure, evaluation_rows, share_text
from rewardlab.reporting.pages import page_environment

WIDTH, HEIGHT, PAD = 320, 120, 4
STEPS_SHOWN = 40  # of rollouts, evenly spread, the first and the last among them
FIRST = {  # what to look at first, in words
    "loss": "loss",
    "reward": "reward",
    "reward/accuracy": "right verdicts, share",
    "reward/invalid_frac": "answers without a verdict, share",
    "entropy": "entropy",
    "completions/mean_length": "tokens per rollout",
    "grad_norm": "gradient norm",
}
LEFT_OUT = ("epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")


Record = Mapping[str, Any]  # a line of a run's log


@dataclass(frozen=True)
class Curve:
    """A metric as a line: ``points`` are an SVG polyline's, ``breaks`` the steps at which it was no number. Of a single point,
    which is no line, ``dot`` is the place.

    ``words`` say what ``name`` is, where it is one of :data:`FIRST`; else they are the name.
    """

    name: str
    words: str
    points: str
    low: float
    high: float
    last: float
    steps: tuple[int, int]
    breaks: tuple[int, ...]
    dot: tuple[float, float] | None = None


def curve(name: str, values: Sequence[tuple[int, Any]]) -> Curve | None:
    """Return the curve of (step, value), None if not one value is a number."""
    finite = [(step, float(value)) for step, value in values if isinstance(value, int | float) and math.isfinite(value)]
    if not finite:
        return None
    steps, numbers = [step for step, _ in finite], [value for _, value in finite]
    low, high = min(numbers), max(numbers)
    places = [
        (
            PAD + _share(step, min(steps), max(steps)) * (WIDTH - 2 * PAD),
            HEIGHT - PAD - _share(value, low, high) * (HEIGHT - 2 * PAD),
        )
        for step, value in finite
    ]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    breaks = tuple(step for step, value in values if not isinstance(value, int | float))
    dot = places[0] if len(set(steps)) == 1 else None
    return Curve(name, FIRST.get(name, name), points, low, high, numbers[-1], (min(steps), max(steps)), breaks, dot)


def _share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others, 0..1; in the middle where they are one."""
    return (value - low) / (high - low) if high > low else 0.5


def breakable(name: str) -> Markup:
    """Return a name that a line may end in after a slash or an underscore, and not within a word."""
    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def curve_groups(rows: Sequence[Record]) -> dict[str, list[Curve]]:
    """Return curves by what stands before the slash of their names; the ones to look at first ahead, under ''."""
    values: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name != "step" and name not in LEFT_OUT and not name.startswith(PREFIX):
                values[name].append((row["step"], value))
    curves = {name: line for name, points in values.items() if (line := curve(name, points))}
    groups: dict[str, list[Curve]] = {"": [curves[name] for name in FIRST if name in curves]}
    for name in sorted(set(curves) - FIRST.keys()):
        groups.setdefault(name.partition("/")[0] if "/" in name else "other", []).append(curves[name])
    return groups


def evaluation_curves(rows: Sequence[Record]) -> list[Curve]:
    """Return what stands beside the figure of evaluations."""
    values = {name: [(row["step"], row[PREFIX + name]) for row in rows if PREFIX + name in row] for name in SMALL}
    curves = [curve(name, points) for name, points in values.items()]
    return [replace(line, words=SMALL[line.name]) for line in curves if line is not None]


def samples_by_step(samples: Sequence[Record]) -> dict[int, list[Record]]:
    """Return rollouts by step, of :data:`STEPS_SHOWN` steps."""
    steps = sorted({row["step"] for row in samples})
    if len(steps) > STEPS_SHOWN:
        steps = [steps[round(n * (len(steps) - 1) / (STEPS_SHOWN - 1))] for n in range(STEPS_SHOWN)]
    return {step: [row for row in samples if row["step"] == step] for step in steps}


@dataclass(frozen=True)
class TrainingRun:
    """What is shown of a run: its configuration, the rows of its metrics and samples, the watchdog's events, and what its
    evaluations came to (``run.json``), where it has ended and had some."""

    name: str
    config: Record
    commit: str
    versions: dict[str, str]
    is_finished: bool
    metrics: Sequence[Record]
    events: Sequence[Record]
    samples: Sequence[Record]
    evaluation: Record | None = None


def run_page(run: TrainingRun) -> str:
    """Return one self-contained HTML page about a run."""
    return (
        page_environment()
        .get_template("run_page.html")
        .render(
            name=run.name,
            config=run.config,
            commit=run.commit,
            versions=run.versions,
            finished=run.is_finished,
            last_step=max((row["step"] for row in run.metrics), default=0),
            groups=curve_groups(run.metrics),
            figure=evaluation_figure(run.metrics, (run.config.get("evaluation") or {}).get("metric", "accuracy")),
            beside=evaluation_curves(evaluation_rows(run.metrics)),
            evaluation=run.evaluation,
            share_text=share_text,
            breakable=breakable,
            events=run.events,
            samples=samples_by_step(run.samples),
            width=WIDTH,
            height=HEIGHT,
        )
    )
