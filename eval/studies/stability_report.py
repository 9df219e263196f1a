"""The report of the stability study: summaries by arm and rate and differences by seed, as tables, JSON and one plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from eval.studies.stability import ARMS, COLLAPSE, has_collapsed
from eval.studies.study import Record
from eval.studies.tables import cell, common_lines, page, t_interval, table, trial_facts
from rewardlab.metrics.intervals import wilson_interval

BASES = ("stable_reinforce", "reinforce_pp")
COLOURS = ("#7fa7c9", "#1f4e79", "#c0504d", "#7f6084", "#4f8f4f")
Row = dict[str, Any]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _all(records: Sequence[Record], series: str) -> list[float]:
    """Return a series of all trials, without missing values."""
    return [value for record in records for value in record["series"][series] if value is not None]


def _by_batch(records: Sequence[Record], series: str) -> list[list[float]]:
    """Return the values of all trials for each rollout batch; a trial that ended early has no later ones."""
    longest = max((len(r["series"][series]) for r in records), default=0)
    columns = [[r["series"][series][n] for r in records if n < len(r["series"][series])] for n in range(longest)]
    return [[value for value in column if value is not None] for column in columns]


def _bounded(values: Sequence[float]) -> list[float] | None:
    interval = t_interval(values)
    return None if interval is None else [max(0.0, interval[0]), min(1.0, interval[1])]


def summary_of(records: Sequence[Record], start: float) -> Row:
    """Summarize an arm at a rate over its seeds. Fractions of tokens are means over steps (pre-clip) or batches (outliers)."""
    accuracy, invalid = [r["accuracy"] for r in records], [r["invalid"] for r in records]
    collapsed, norms = sum(has_collapsed(r, start) for r in records), _all(records, "grad_norm")
    median, high, top = np.quantile(norms, (0.5, 0.99, 1.0)) if norms else (math.nan,) * 3
    return {
        "num_seeds": len(records),
        "collapsed": collapsed,
        "collapse_rate": collapsed / len(records),
        "collapse_interval": list(wilson_interval(collapsed, len(records))),
        "non_finite": sum(r["status"] != "finished" for r in records),
        "accuracy": _mean(accuracy),
        "accuracy_interval": _bounded(accuracy),
        "invalid": _mean(invalid),
        "invalid_interval": _bounded(invalid),
        "right_of_rollouts": [_mean(batch) for batch in _by_batch(records, "right")],
        "grad_norm": {"median": float(median), "p99": float(high), "max": float(top)} if norms else None,
        "grad_norm_non_finite": sum(v is None for r in records for v in r["series"]["grad_norm"]),
        **{name: _mean(_all(records, name)) for name in ("preclip_frac", "clip_frac", "outlier_frac_negative")},
        "outlier_frac_positive": _mean(_all(records, "outlier_frac_positive")),
        "first_outlier_frac_negative": _mean([v for b in _by_batch(records, "outlier_frac_negative")[:1] for v in b]),
        "last_entropy": _mean([values[-1] for r in records if (values := _all([r], "entropy"))]),
    }


def paired(records: Sequence[Record], base: Sequence[Record], start: float) -> Row:
    """Return the difference in final accuracy to ``base``, seed by seed, and the seeds on which only one of the two collapsed.

    ``identical`` seeds have every loss in common: what the arms differ in never acted.
    """
    theirs = {r["seed"]: r for r in base}
    both = [(r, theirs[r["seed"]]) for r in records if r["seed"] in theirs]
    differences = [this["accuracy"] - other["accuracy"] for this, other in both]
    interval = t_interval(differences)
    fell = [(has_collapsed(this, start), has_collapsed(other, start)) for this, other in both]
    return {
        "num_seeds": len(both),
        "difference": _mean(differences),
        "interval": None if interval is None else list(interval),
        "only_this_collapsed": sum(this and not other for this, other in fell),
        "only_the_other_collapsed": sum(other and not this for this, other in fell),
        "identical": sum(this["series"]["loss"] == other["series"]["loss"] for this, other in both),
    }


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> Row:
    """Return everything the report shows. Raise ValueError without a record."""
    facts, accuracy = trial_facts(records, start, num_workers), start["accuracy"]
    arms = [arm for arm in ARMS if any(r["arm"] == arm for r in records)]
    rates = sorted({r["learning_rate"] for r in records})

    def of(arm: str, rate: float) -> list[Record]:
        return [r for r in records if (r["arm"], r["learning_rate"]) == (arm, rate)]

    def every(make: Callable[[list[Record], float], Any]) -> dict[str, dict[str, Any]]:
        return {arm: {f"{rate:g}": make(group, rate) for rate in rates if (group := of(arm, rate))} for arm in arms}

    first = [r["series"]["right"][0] for r in records if r["series"]["right"]]
    differences = {
        f"against_{base}": every(lambda group, rate, base=base: paired(group, of(base, rate), accuracy))  # type: ignore[misc]
        for base in BASES
        if base in arms
    }
    return {
        **facts,
        "start": {key: start[key] for key in ("accuracy", "invalid", "num_votes")},
        "num_candidates": len(start["right"]),
        "right_at_start": {"mean": _mean(first), "lowest": min(first), "highest": max(first)},
        "learning_rates": rates,
        "cells": every(lambda group, rate: summary_of(group, accuracy)),
        **differences,
        "trials": [{key: value for key, value in r.items() if key not in ("series", "answers", "commit")} for r in records],
    }


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def _with(row: Row, name: str) -> str:
    return cell({"mean": row[name], "interval": row[f"{name}_interval"]}, 100)


def _outcome(row: Row) -> list[str]:
    low, high = row["collapse_interval"]
    note = f", {row['non_finite']} non-finite" if row["non_finite"] else ""
    return [
        f"{row['collapsed']} of {row['num_seeds']} [{_percent(low, 0)}, {_percent(high, 0)}]{note}",
        _with(row, "accuracy"),
        _with(row, "invalid"),
        " ".join(_percent(value, 0) for value in row["right_of_rollouts"]),
    ]


def _mechanics(arm: str, row: Row) -> list[str]:
    norm, outliers = row["grad_norm"], ARMS[arm].method.get("outliers", "delete")
    outliers = {"raw_mean_filter": "delete", "grpo": ""}.get(arm, outliers)
    return [
        "–" if norm is None else f"{norm['median']:.2f} / {norm['p99']:.2f} / {norm['max']:.3g}",
        _percent(row["preclip_frac"], 3),
        _percent(row["clip_frac"]),
        {"delete": "deleted", "clip": "clipped", "keep": "kept", "": "–"}[outliers],
        _percent(row["first_outlier_frac_negative"]),
        f"{_percent(row['outlier_frac_negative'])} / {_percent(row['outlier_frac_positive'])}",
        "–" if row["last_entropy"] is None else f"{row['last_entropy']:.3f}",
    ]


def _comparison(row: Row) -> list[str]:
    return [
        cell({"mean": row["difference"], "interval": row["interval"]}, 100, sign=True),
        f"{row['only_this_collapsed']} / {row['only_the_other_collapsed']}",
        f"{row['identical']} of {row['num_seeds']}",
    ]


def _short(row: Row | None) -> str:
    if row is None:
        return "–"
    return _with(row, "accuracy") + (f"; {row['collapsed']} of {row['num_seeds']}" if row["collapsed"] else "")


def _facts(summary: Row) -> list[str]:
    settings, start, right = summary["identity"]["settings"], summary["start"], summary["right_at_start"]
    steps, pairs = settings["rollout_batch_size"] // settings["batch_size"] * settings["iterations"], settings["num_test"]
    first, last = common_lines(summary)
    return [
        first,
        f"Start: the quickstart's judge after RL; {_percent(start['accuracy'])} % of {start['num_votes']:,} sampled answers on "
        f"{pairs} held-out pairs in both orders are right, {_percent(start['invalid'])} % have no verdict (counted as wrong).",
        f"A trial: {settings['rollout_batches']} batches of {settings['rollout_batch_size']} rollouts, {steps} optimizer steps "
        f"of {settings['batch_size']} on each; {_percent(right['mean'])} % of the rollouts of the first batch are right "
        f"({_percent(right['lowest'])} to {_percent(right['highest'])} over trials).",
        f"Collapse: a final accuracy more than {100 * COLLAPSE:.0f} points below the start, or non-finite weights or "
        "probabilities (then 0 answers are right and all are invalid).",
        f"Final accuracy: {2 * pairs * settings['num_votes']} sampled answers, the same pairs for every trial.",
        "Intervals are 95 %: Student's t over seeds for accuracies, invalid rates and paired differences (they describe the "
        "randomness of training on these held-out pairs), Wilson's for collapse. They are not corrected for multiple "
        "comparisons: one in twenty paired differences excludes 0 by chance.",
        last,
    ]


def markdown(summary: Row) -> str:
    """Return the whole study as tables; percent unless named otherwise."""
    rates = [f"{rate:g}" for rate in summary["learning_rates"]]
    head = ["final accuracy; collapsed", *(f"rate {rate}" for rate in rates)]
    parts = table(head, [[ARMS[arm].title, *map(_short, map(rows.get, rates))] for arm, rows in summary["cells"].items()])
    parts += ["![Accuracy and collapse by arm and rate](stability.png)"]
    for rate in rates:
        rows = {arm: of_arm[rate] for arm, of_arm in summary["cells"].items() if rate in of_arm}
        parts += ["", f"## Learning rate {rate}", ""]
        head = ["arm", "collapsed", "final accuracy", "invalid", "right of rollouts, by batch"]
        parts += table(head, [[ARMS[arm].title, *_outcome(row)] for arm, row in rows.items()])
        head = ["arm", "gradient norm: median / 99th / max", "tokens pre-clipped", "tokens PPO-clipped", "outliers are"]
        head += ["outliers < 0, first batch", "all batches: < 0 / > 0", "last entropy"]
        parts += table(head, [[ARMS[arm].title, *_mechanics(arm, row)] for arm, row in rows.items()])
        for base in BASES:
            pairs = {arm: of[rate] for arm, of in summary.get(f"against_{base}", {}).items() if rate in of and arm != base}
            compared = [[ARMS[arm].title, *_comparison(pair)] for arm, pair in pairs.items() if pair["num_seeds"]]
            head = [f"against {ARMS[base].title}, by seed", "final accuracy, points"]
            head += ["collapsed: only this / only the other", "the same run, loss by loss"]
            parts += table(head, compared) if compared else []
    return page("Does StableReinforce still matter when the actor sees?", _facts(summary), parts)


def draw(summary: Row, path: Path) -> None:
    """Draw final accuracy with its interval and the fraction of collapsed seeds, by arm and learning rate."""
    arms, rates = list(summary["cells"]), [f"{rate:g}" for rate in summary["learning_rates"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.55 * len(arms) + 1.6), sharey=True, width_ratios=(3, 2))
    for n, rate in enumerate(rates):
        shift, colour = 0.22 * (n - (len(rates) - 1) / 2), COLOURS[n % len(COLOURS)]
        for line, arm in enumerate(arms):
            if (row := summary["cells"][arm].get(rate)) is None:
                continue
            low, high = row["accuracy_interval"] or (row["accuracy"],) * 2
            left.plot([100 * low, 100 * high], [line + shift] * 2, color=colour, lw=2)
            left.plot(100 * row["accuracy"], line + shift, "o", color=colour, ms=5)
            right.barh(line + shift, 100 * row["collapse_rate"], 0.2, color=colour)
        left.plot([], [], "o-", color=colour, label=f"rate {rate}")
    start = 100 * summary["start"]["accuracy"]
    left.axvline(start, color="#888", ls="--", lw=1, label="start")
    left.axvline(start - 100 * COLLAPSE, color="#888", ls=":", lw=1, label="below: collapsed")
    left.set(yticks=range(len(arms)), yticklabels=[ARMS[arm].title for arm in arms], xlim=(0, 100))
    left.set_xlabel("final accuracy, % (95 % interval over seeds)")
    right.set(xlabel="seeds collapsed, %", xlim=(0, 100))
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
