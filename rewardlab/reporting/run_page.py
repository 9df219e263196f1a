"""A training run to look at: curves of every term, rollouts over time, and what the watchdog saw, on one page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rewardlab.reporting.pages import page_environment

WIDTH, HEIGHT, PAD = 320, 120, 4
STEPS_SHOWN = 40  # of rollouts, evenly spread, the first and the last among them
FIRST = ("loss", "reward", "reward/accuracy", "reward/invalid_frac", "entropy", "completions/mean_length", "grad_norm")
LEFT_OUT = ("epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")


@dataclass(frozen=True)
class Curve:
    """One metric as a line: ``points`` are an SVG polyline's, ``breaks`` the steps at which it was no number."""

    name: str
    points: str
    low: float
    high: float
    last: float
    steps: tuple[int, int]
    breaks: tuple[int, ...]


def curve(name: str, values: Sequence[tuple[int, Any]]) -> Curve | None:
    """None where there is not one number."""
    known = [(step, float(value)) for step, value in values if isinstance(value, int | float) and math.isfinite(value)]
    if not known:
        return None
    steps, numbers = [step for step, _ in known], [value for _, value in known]
    low, high = min(numbers), max(numbers)
    wide, tall = (max(steps) - min(steps)) or 1, (high - low) or 1.0
    points = " ".join(
        f"{PAD + (step - min(steps)) / wide * (WIDTH - 2 * PAD):.1f},"
        f"{HEIGHT - PAD - ((value - low) / tall if high > low else 0.5) * (HEIGHT - 2 * PAD):.1f}"
        for step, value in known
    )
    breaks = tuple(step for step, value in values if not isinstance(value, int | float))
    return Curve(name, points, low, high, numbers[-1], (min(steps), max(steps)), breaks)


def grouped(rows: Sequence[dict[str, Any]]) -> dict[str, list[Curve]]:
    """Curves by what stands before the slash of their names; the ones to look at first ahead, under ''."""
    values: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name != "step" and name not in LEFT_OUT:
                values[name].append((row["step"], value))
    curves = {name: found for name, own in values.items() if (found := curve(name, own))}
    groups: dict[str, list[Curve]] = {"": [curves[name] for name in FIRST if name in curves]}
    for name in sorted(set(curves) - set(FIRST)):
        groups.setdefault(name.partition("/")[0] if "/" in name else "other", []).append(curves[name])
    return groups


def samples_by_step(samples: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Rollouts by step, of :data:`STEPS_SHOWN` steps."""
    steps = sorted({row["step"] for row in samples})
    if len(steps) > STEPS_SHOWN:
        steps = [steps[round(n * (len(steps) - 1) / (STEPS_SHOWN - 1))] for n in range(STEPS_SHOWN)]
    return {step: [row for row in samples if row["step"] == step] for step in steps}


@dataclass(frozen=True)
class TrainingRun:
    """What is shown of a run: its configuration, the rows of its metrics and samples, and the watchdog's events."""

    name: str
    config: dict[str, Any]
    commit: str
    versions: dict[str, str]
    is_finished: bool
    metrics: Sequence[dict[str, Any]]
    events: Sequence[dict[str, Any]]
    samples: Sequence[dict[str, Any]]


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
            groups=grouped(run.metrics),
            events=run.events,
            samples=samples_by_step(run.samples),
            width=WIDTH,
            height=HEIGHT,
        )
    )
