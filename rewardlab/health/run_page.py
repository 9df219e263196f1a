"""The page of a training run, from the files in its folder and the data it was trained on."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup, escape

from rewardlab.data.columns import ALL
from rewardlab.data.files import complete_lines, read_complete_lines, write_atomic
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.pair_table import PairTable, pair_facts
from rewardlab.errors import DataError, InputError
from rewardlab.models.model_config import video_policy_of
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import (
    INK,
    LEAF,
    WARM,
    Limit,
    MetricPoints,
    Series,
    figure_uri,
    plot_fractions,
    plot_metric,
)
from rewardlab.rewards.policy_signs import bounds_of_signs, early_sentence
from rewardlab.types import PreferencePair

FIRST = {  # of the page, with their names in words
    "loss": "loss",
    "accuracy": "comparisons won",
    "margin": "margin of the right one",
    "reward": "reward",
    "reward/accuracy": "right verdicts",
    "reward/invalid_frac": "answers without a verdict",
    "entropy": "entropy",
    "completions/mean_length": "tokens per rollout",
    "grad_norm": "gradient norm",
    "importance/gap": "nats between sampler and trainer",
}
LEFT_OUT = ("step", "epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")
PREFIX = "eval/"
EVALUATED = {  # fractions of held-out pairs: name, color, whether its interval is shaded
    "accuracy": ("accuracy", INK, True),
    "consistent_accuracy": ("right in both\norders", LEAF, False),
    "blank_accuracy": ("grey images", WARM, True),
}
BESIDE = {  # metrics of evaluations that have a figure each
    "swap_consistency": "both orders name the same",
    "invalid_frac": "judgments without a verdict",
    "first_frac": "verdicts for the first",
    "mean_length": "tokens per judgment",
}
MOST_POINTS, MOST_EVALUATIONS = 300, 240  # of a figure; of a table
MOST_STEPS, MOST_PER_STEP = 40, 8  # rollouts
MOST_CHARACTERS = 4000  # of a text
LARGEST = 1e100  # a larger value counts as no number
LOG_FROM = 1e2  # the ratio of the highest value to the median (and to the lowest) from which an axis is logarithmic
_FRACTION = re.compile(
    r"_frac(_|$)|(^|[/_])accuracy(_|$)|_recognised$|^(verdict|verifier)/|^reward/format$|win_rate$|swap_consistency$"
)
Record = Mapping[str, Any]
T = TypeVar("T")


# Metrics.


@dataclass(frozen=True)
class MetricFigure:
    """A metric on a page: its figure as a data URL, its ``last`` value and the steps of ``breaks`` in words."""

    name: str
    words: str
    image: str
    last: str
    breaks: str
    is_thinned: bool


def metric_figure(
    name: str,
    values: Sequence[tuple[int, Any]],
    ends: tuple[int, int],
    words: str = "",
    limits: Sequence[Limit] = (),
) -> MetricFigure | None:
    """Return the figure of (step, value), None without a number. If a step was logged twice, its last value counts."""
    by_step = sorted(dict(values).items())
    finite = [(step, float(value)) for step, value in by_step if _is_number(value)]
    if not finite:
        return None
    breaks = [step for step, value in by_step if not _is_number(value)]
    places = {round(MOST_POINTS * step / max(1, ends[1])): step for step in breaks}
    points = thin(finite, list(places.values()))
    figure = plot_metric(points, ends, is_fraction=is_fraction(name), is_log=needs_log(points), limits=limits)
    return MetricFigure(
        name, words or name, figure_uri(figure), _value_text(name, *finite[-1]), _steps_text(breaks), len(finite) > MOST_POINTS
    )


def thin(values: Sequence[tuple[int, float]], breaks: Sequence[int] = ()) -> MetricPoints:
    """Return at most :data:`MOST_POINTS` points of (step, value), sorted by step, each the mean of as many steps, with their
    extremes."""
    parts = np.array_split(np.array(values, dtype=float), min(MOST_POINTS, len(values)))
    means = [part.mean(axis=0).tolist() for part in parts]
    low, high = ([float(end(part[:, 1])) for part in parts] for end in (np.min, np.max))
    return MetricPoints([step for step, _ in means], [mean for _, mean in means], low, high, breaks)


def needs_log(points: MetricPoints) -> bool:
    """Return whether a linear axis would hide half of the values: they are below a hundredth of the highest."""
    low, high = min(points.low), max(points.high)
    return low > 0 and high >= LOG_FROM * low and high > LOG_FROM * float(np.median(points.mean))


def is_fraction(name: str) -> bool:
    """Return whether a metric is a fraction in 0..1, by its name."""
    return bool(_FRACTION.search(name))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST


def _value_text(name: str, step: int, value: float) -> str:
    unit = " %" if is_fraction(name) else " s" if name.endswith("seconds") else ""
    number = 100 * value if is_fraction(name) else value
    return f"{number:,.0f}{unit}, step {step:,}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}{unit}, step {step:,}"


def _steps_text(steps: Sequence[int]) -> str:
    if len(steps) < 2:
        return f"step {steps[0]:,}" if steps else ""
    return f"{len(steps):,} steps, first {steps[0]:,}, last {steps[-1]:,}"


def breakable(name: str) -> Markup:
    """Return a name that may break after a slash or an underscore."""
    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def ends_of(rows: Sequence[Record]) -> tuple[int, int]:
    """Return the first and the last step of a run, which all of its figures share."""
    steps = [row["step"] for row in rows] or [0]
    return min(steps), max(steps)


def metric_groups(rows: Sequence[Record], ends: tuple[int, int], bounds: Mapping[str, float]) -> dict[str, list[MetricFigure]]:
    """Return metrics by the part of their names before the slash; those of :data:`FIRST` under "". ``bounds``: limits by
    metric."""
    names = dict.fromkeys(name for row in rows for name in row if name not in LEFT_OUT and not name.startswith(PREFIX))
    groups: dict[str, list[MetricFigure]] = {"": []}
    for name in [*(name for name in FIRST if name in names), *sorted(names.keys() - FIRST.keys())]:
        values = [(row["step"], row[name]) for row in rows if name in row]
        limits = [Limit(*ends, bounds[name])] if name in bounds else []
        if (metric := metric_figure(name, values, ends, FIRST.get(name, ""), limits)) is not None:
            group = "" if name in FIRST else name.partition("/")[0] if "/" in name else "other"
            groups.setdefault(group, []).append(metric)
    return groups


# Evaluations.


@dataclass(frozen=True)
class EvaluationFigure:
    """The evaluations of a run: their figure, further metrics, and the ``rows`` of a table, of ``count`` in all. ``best``: the
    step of the best one, and its value in words."""

    image: str
    beside: Sequence[MetricFigure]
    rows: Sequence[Record]
    count: int
    best: tuple[int, str]


def evaluation_figure(metrics: Sequence[Record], metric: str = "accuracy") -> EvaluationFigure | None:
    """Return a run's evaluations, None without any. Very many are thinned evenly; the first, last and best ones stay."""
    evaluations = [row for row in metrics if f"{PREFIX}accuracy" in row]
    if not evaluations:
        return None
    best = max(evaluations, key=lambda row: (row.get(PREFIX + metric, 0.0), -row["step"]))
    every = max(1.0, (len(evaluations) - 1) / (MOST_EVALUATIONS - 1))
    chosen = {round(n * every) for n in range(min(len(evaluations), MOST_EVALUATIONS))}
    rows = [row for n, row in enumerate(evaluations) if n in chosen or row is best]
    lines = [line for name in EVALUATED if (line := _evaluated(name, rows)) is not None]
    ring = best["step"], best.get(PREFIX + metric, best[f"{PREFIX}accuracy"])
    figure = plot_fractions(lines, xlabel="step", ylabel="held-out pairs, %", best=ring)
    beside = (
        metric_figure(name, [(row["step"], row[PREFIX + name]) for row in rows if PREFIX + name in row], ends_of(rows), words)
        for name, words in BESIDE.items()
    )
    return EvaluationFigure(
        figure_uri(figure),
        [one for one in beside if one is not None],
        rows,
        len(evaluations),
        (best["step"], interval_text(best, metric)),
    )


def _evaluated(name: str, rows: Sequence[Record]) -> Series | None:
    label, color, is_shaded = EVALUATED[name]
    known = [row for row in rows if PREFIX + name in row]
    if not known:
        return None
    ends = [(row[f"{PREFIX}{name}_low"], row[f"{PREFIX}{name}_high"]) for row in known] if is_shaded else []
    return Series(label, [row["step"] for row in known], [row[PREFIX + name] for row in known], color, ends)


def interval_text(row: Record, name: str) -> str:
    """Return a fraction of an evaluation in percent, with its interval if there is one."""
    if (value := row.get(PREFIX + name)) is None:
        return "–"
    low, high = (row.get(f"{PREFIX}{name}_{end}") for end in ("low", "high"))
    return f"{100 * value:.1f}" + ("" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]")


# Rollouts.


@dataclass(frozen=True)
class RolloutPair:
    """The pair of a rollout: ``images`` and ``response_images`` are indices of :attr:`PairsOfRun.pictures`, ``left_out`` counts
    further images, ``preferred`` is the index of the better response, None if unknown."""

    question: str
    responses: tuple[str, str]
    preferred: int | None
    images: tuple[int, ...]
    response_images: tuple[tuple[int, ...], tuple[int, ...]]
    left_out: int


@dataclass(frozen=True)
class PairsOfRun:
    """Pairs by ``pair_id``; ``pictures`` are distinct data URLs; ``note`` says why pairs are missing, if any are."""

    by_id: Mapping[str, RolloutPair] = field(default_factory=dict)
    pictures: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class StepRollouts:
    """At most :data:`MOST_PER_STEP` rollouts of a step by ``pair_id``, of ``count``; ``reward``: their mean, or None."""

    step: int
    by_pair: Mapping[str, Sequence[Record]]
    count: int
    reward: float | None


def steps_to_show(steps: Iterable[int]) -> list[int]:
    """Return at most :data:`MOST_STEPS` of the distinct steps in order, evenly spread."""
    return _spread(sorted(set(steps)), MOST_STEPS)


def rollouts_by_step(samples: Iterable[Record]) -> list[StepRollouts]:
    """Return the rollouts of the page."""
    by_step: dict[int, list[Record]] = {}
    for row in samples:
        by_step.setdefault(row["step"], []).append(row)
    return [_of_step(step, by_step[step]) for step in steps_to_show(by_step)]


def newest_ids(rollouts: Sequence[StepRollouts]) -> list[str]:
    """Return the distinct ids of the rollouts' pairs, those of the last steps first."""
    return list(dict.fromkeys(pair_id for step in reversed(rollouts) for pair_id in step.by_pair if pair_id))


def _of_step(step: int, rows: Sequence[Record]) -> StepRollouts:
    by_pair: dict[str, list[Record]] = {}
    for row in rows[:MOST_PER_STEP]:
        by_pair.setdefault(str(row.get("pair_id", "")), []).append(row)
    rewards = [row["reward"] for row in rows[:MOST_PER_STEP] if isinstance(row.get("reward"), int | float)]
    return StepRollouts(step, by_pair, len(rows), sum(rewards) / len(rewards) if rewards else None)


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return the first ``most`` characters of a text, and how many follow."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


# The page.


@dataclass(frozen=True)
class TrainingRun:
    """A run as the page shows it: rows of its metrics and samples, the watchdog's events, the summary of its evaluations
    (``run.json``), and the pairs of its rollouts. ``bounds``: limits of the watchdog by metric; ``too_early``: a sentence if
    the run is too short for some signs."""

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
    ends = ends_of(run.metrics)
    metric = (run.config.get("evaluation") or {}).get("metric", "accuracy")
    return (
        page_environment()
        .get_template("run_page.html")
        .render(
            run=run,
            last_step=ends[1],
            groups=metric_groups(run.metrics, ends, run.bounds),
            evaluated=evaluation_figure(run.metrics, metric),
            rollouts=rollouts_by_step(run.samples),
            interval_text=interval_text,
            breakable=breakable,
            shorten=shorten,
        )
    )


PAGE = "run.html"
PICTURE_PX = 320  # the longer side
MOST_OF_A_PAIR, MOST_PICTURES = 4, 160  # 160 of them are about 3 MB


def write_run_page(run: Path, *, data: Path | None = None, images: Path | None = None) -> Path:
    """Write ``run/run.html`` and return its path. Raise DataError if ``run`` is not the folder of a training run.

    ``data``: the pairs it was trained on, with media below ``images``, if they have moved; raise DataError or MediaError if
    these are other pairs or cannot be read.
    """
    if not (run / "run.json").exists():
        raise DataError(
            f"{run}: not a training run (no run.json in it); give the --out of sft, rl, rm, prm or policy, "
            "or of signs, where each key has its own folder, key=NAME"
        )
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    samples, metrics = _samples_to_show(run / "samples.jsonl"), read_complete_lines(run / "metrics.jsonl")
    limits = record["config"].get("signs") or {}  # of a policy
    page = run_page(
        TrainingRun(
            name=run.name,
            config=record["config"],
            commit=record["commit"],
            versions=record["versions"],
            is_finished=(run / "final").exists(),
            metrics=metrics,
            events=read_complete_lines(run / "health.jsonl"),
            samples=samples,
            evaluation=record.get("evaluation"),
            pairs=pairs_of_run(run, record, newest_ids(rollouts_by_step(samples)), data=data, images=images),
            bounds=bounds_of_signs(metrics, limits),
            too_early=early_sentence(metrics) if limits else "",
        )
    )
    write_atomic(run / PAGE, page)
    return run / PAGE


def _samples_to_show(path: Path) -> list[dict[str, Any]]:
    """Return the rollouts of the steps on the page, without loading all of a long run."""
    steps = set(steps_to_show(row["step"] for row in complete_lines(path)))
    return [row for row in complete_lines(path) if row["step"] in steps]


def pairs_of_run(
    run: Path, record: Mapping[str, Any], pair_ids: Sequence[str], *, data: Path | None = None, images: Path | None = None
) -> PairsOfRun:
    """Return the pairs of these ids from the data that ``record`` (``run.json``) names, or from ``data`` with media below
    ``images``. The first ids have images, up to :data:`MOST_PICTURES`. Pairs that share an id are left out.

    If the data cannot be read, or are not those of the run, a note says so; with ``data`` raise DataError or MediaError.
    """
    if not pair_ids:
        return PairsOfRun()
    source = record.get("data_files") or {}
    if data is None and not source.get("path"):
        return _without(run, "the run does not record the file that it was trained on")
    path = data or Path(source["path"])
    folder = images if data or images else Path(source["images"]) if source.get("images") else None
    try:
        return _of_table(_open(path, folder, record), pair_ids)
    except InputError as error:
        if data:
            raise
        return _without(run, str(error))


def _without(run: Path, why: str) -> PairsOfRun:
    return PairsOfRun(note=f"Questions and images are not shown: {why}; `rewardlab show {run} --data FILE` adds them.")


def _open(path: Path, images: Path | None, record: Mapping[str, Any]) -> PairTable:
    config = record["config"]
    table = PairTable(
        path,
        images=images,
        frames=config["frames"],
        policy=partial(video_policy_of, config["model"]),
        allow_columns=(ALL,),
        allow_without_images=True,
    )
    if not record["data"].startswith(table.fingerprint):
        raise DataError(f"{path}: not the pairs that the run was trained on, or they have changed since")
    return table


def _of_table(table: PairTable, pair_ids: Sequence[str]) -> PairsOfRun:
    facts = pair_facts(table)
    counts = Counter(fact.pair_id for fact in facts)
    numbers = {fact.pair_id: number for number, fact in enumerate(facts) if counts[fact.pair_id] == 1}
    by_id: dict[str, RolloutPair] = {}
    pictures: dict[str, int] = {}
    unreadable = 0
    for pair_id in pair_ids:
        if pair_id in numbers:
            try:
                by_id[pair_id] = _pair_with(pictures, table[numbers[pair_id]])
            except (InputError, OSError):  # one file that is gone hides its own pair alone
                unreadable += 1
    missing = len(pair_ids) - len(by_id) - unreadable
    notes = [f"{missing:,} pairs are not shown: their pair_id is not in {table.path}, or not only once."] if missing else []
    notes += [f"{unreadable:,} pairs are not shown: their media cannot be read."] if unreadable else []
    return PairsOfRun(by_id, tuple(pictures), " ".join(notes))


def _pair_with(pictures: dict[str, int], pair: PreferencePair) -> RolloutPair:
    """Return a pair and add its images to ``pictures`` (data URL -> index), the question's first, evenly spread if too many."""
    most = min(MOST_OF_A_PAIR, MOST_PICTURES - len(pictures))
    left, sets = most, []
    for images in (pair.images, *pair.response_images):
        chosen = _spread(images, left)
        left -= len(chosen)
        urls = (to_data_url(thumbnail(image, PICTURE_PX)) for image in chosen)
        sets.append(tuple(pictures.setdefault(url, len(pictures)) for url in urls))
    total = len(pair.images) + sum(map(len, pair.response_images))
    return RolloutPair(pair.question, pair.responses, pair.preferred, sets[0], (sets[1], sets[2]), total - most + left)


def _spread(items: Sequence[T], most: int) -> list[T]:
    if len(items) <= most:
        return list(items)
    return [items[round(n * (len(items) - 1) / max(1, most - 1))] for n in range(most)]
