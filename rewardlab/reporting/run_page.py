"""A training run to look at: curves of every term, rollouts over time, and what the watchdog saw, on one page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from rewardlab.reporting.axes import Axis, step_axis
from rewardlab.reporting.curves import Curve, Limit, curve
from rewardlab.reporting.evaluation_figure import PREFIX, SMALL, evaluation_figure, evaluation_rows, share_text
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.rollouts import PairsOfRun, Record, rollouts_by_step, shorten

FIRST = {  # what to look at first, in words
    "loss": "loss",
    "reward": "reward",
    "reward/accuracy": "right verdicts",
    "reward/invalid_frac": "answers without a verdict",
    "entropy": "entropy",
    "completions/mean_length": "tokens per rollout",
    "grad_norm": "gradient norm",
}
LEFT_OUT = ("step", "epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")


def breakable(name: str) -> Markup:
    """Return a name that a line may end in after a slash or an underscore, and not within a word."""
    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def steps_of_run(rows: Sequence[Record]) -> Axis:
    """Return the axis of the steps of a run, which all of its curves share."""
    steps = [row["step"] for row in rows] or [0]
    return step_axis(min(steps), max(steps))


def curve_groups(rows: Sequence[Record], x_axis: Axis, bounds: Mapping[str, float]) -> dict[str, list[Curve]]:
    """Return curves by what stands before the slash of their names; the ones to look at first ahead, under ''. ``bounds`` are
    limits of metrics, over all steps."""
    ends = int(x_axis.low), int(x_axis.high)
    names = dict.fromkeys(name for row in rows for name in row if name not in LEFT_OUT and not name.startswith(PREFIX))
    values = ((name, [(row["step"], row[name]) for row in rows if name in row]) for name in names)  # of one metric at a time
    limits = {name: [Limit(*ends, value)] for name, value in bounds.items()}
    lines = (curve(name, points, x_axis, FIRST.get(name, ""), limits.get(name, ())) for name, points in values)
    curves = {line.name: line for line in lines if line is not None}
    groups: dict[str, list[Curve]] = {"": [curves[name] for name in FIRST if name in curves]}
    for name in sorted(set(curves) - FIRST.keys()):
        groups.setdefault(name.partition("/")[0] if "/" in name else "other", []).append(curves[name])
    return groups


def evaluation_curves(rows: Sequence[Record], x_axis: Axis) -> list[Curve]:
    """Return what stands beside the figure of evaluations."""
    values = {name: [(row["step"], row[PREFIX + name]) for row in rows if PREFIX + name in row] for name in SMALL}
    curves = (curve(name, points, x_axis, SMALL[name]) for name, points in values.items())
    return [line for line in curves if line is not None]


@dataclass(frozen=True)
class TrainingRun:
    """What is shown of a run: its configuration, the rows of its metrics and samples, the watchdog's events, and what its
    evaluations came to (``run.json``), where it has ended and had some; ``pairs`` are what its
    rollouts answer, ``bounds`` by metric what the watchdog sees a sign beyond. ``too_early``
    is a sentence where the run is too short for some signs to be seen."""

    name: str
    config: Record
    commit: str
    versions: dict[str, str]
    is_finished: bool
    metrics: Sequence[Record]
    events: Sequence[Record]
    samples: Sequence[Record]
    evaluation: Record | None = None
    pairs: PairsOfRun = field(default_factory=PairsOfRun)
    bounds: Mapping[str, float] = field(default_factory=dict)
    too_early: str = ""


def run_page(run: TrainingRun) -> str:
    """Return one self-contained HTML page about a run."""
    x_axis = steps_of_run(run.metrics)
    groups = curve_groups(run.metrics, x_axis, run.bounds)
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
            groups=groups,
            is_thinned=any(line.is_thinned for lines in groups.values() for line in lines),
            x_axis=x_axis,
            figure=evaluation_figure(run.metrics, (run.config.get("evaluation") or {}).get("metric", "accuracy")),
            beside=evaluation_curves(evaluation_rows(run.metrics), x_axis),
            evaluation=run.evaluation,
            share_text=share_text,
            breakable=breakable,
            events=run.events,
            rollouts=rollouts_by_step(run.samples),
            pairs=run.pairs,
            limits=run.bounds,
            too_early=run.too_early,
            shorten=shorten,
        )
    )
