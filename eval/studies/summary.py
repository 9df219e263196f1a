"""Summaries of the trials' records: per arm and learning rate, and paired by seed. Pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from eval.studies.stability import ARMS, has_collapsed
from rewardlab.metrics.intervals import wilson_interval

BASES = ("stable_reinforce", "reinforce_pp")
Record = dict[str, Any]


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean over seeds; None for fewer than two. Equal values leave it without width."""
    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _all(records: Sequence[Record], series: str) -> list[float]:
    """A series of all trials, without what is no number."""
    return [value for record in records for value in record["series"][series] if value is not None]


def _bounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [max(0.0, interval[0]), min(1.0, interval[1])]


def cell(records: Sequence[Record], start: float) -> dict[str, Any]:
    """Summarize one arm at one rate over its seeds. Shares of tokens are means over steps (pre-clip) or batches (outliers)."""
    accuracy, invalid = [r["accuracy"] for r in records], [r["invalid"] for r in records]
    collapsed = sum(has_collapsed(r, start) for r in records)
    norms = _all(records, "grad_norm")
    median, high, top = np.quantile(norms, (0.5, 0.99, 1.0)) if norms else (math.nan,) * 3
    return {
        "num_seeds": len(records),
        "collapsed": collapsed,
        "collapse_rate": collapsed / len(records),
        "collapse_interval": list(wilson_interval(collapsed, len(records))),
        "non_finite": sum(r["status"] != "finished" for r in records),
        "accuracy": _mean(accuracy),
        "accuracy_interval": _bounded(t_interval(accuracy)),
        "invalid": _mean(invalid),
        "invalid_interval": _bounded(t_interval(invalid)),
        "right_of_rollouts": [_mean(batch) for batch in _by_batch(records, "right")],
        "grad_norm": {"median": float(median), "p99": float(high), "max": float(top)} if norms else None,
        "grad_norm_non_finite": sum(v is None for r in records for v in r["series"]["grad_norm"]),
        **{name: _mean(_all(records, name)) for name in ("preclip_frac", "clip_frac", "outlier_frac_negative")},
        "outlier_frac_positive": _mean(_all(records, "outlier_frac_positive")),
        "first_outlier_frac_negative": _mean([v for b in _by_batch(records, "outlier_frac_negative")[:1] for v in b]),
        "last_entropy": _mean([values[-1] for r in records if (values := _all([r], "entropy"))]),
    }


def _by_batch(records: Sequence[Record], series: str) -> list[list[float]]:
    """Values of the first rollout batch of all trials, of the second, and so on; trials that ended have no more."""
    longest = max((len(r["series"][series]) for r in records), default=0)
    columns = [[r["series"][series][n] for r in records if n < len(r["series"][series])] for n in range(longest)]
    return [[value for value in column if value is not None] for column in columns]


def paired(records: Sequence[Record], base: Sequence[Record], start: float) -> dict[str, Any]:
    """The difference in final accuracy to ``base``, seed by seed, and the seeds on which only one of the two collapsed.

    ``identical`` seeds had every loss in common: what the arms differ in never acted.
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


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    if not records:
        raise ValueError("there is no finished trial to summarise")
    arms = [arm for arm in ARMS if any(r["arm"] == arm for r in records)]
    rates = sorted({r["learning_rate"] for r in records})

    def of(arm: str, rate: float) -> list[Record]:
        return [r for r in records if (r["arm"], r["learning_rate"]) == (arm, rate)]

    def every(make: Callable[[list[Record], float], Any]) -> dict[str, dict[str, Any]]:
        return {arm: {f"{rate:g}": make(group, rate) for rate in rates if (group := of(arm, rate))} for arm in arms}

    accuracy = start["accuracy"]
    first = [r["series"]["right"][0] for r in records if r["series"]["right"]]
    cpu = start["cpu_s"] + sum(r["cpu_s"] for r in records)
    return {
        "commits": sorted({r["commit"] for r in records}),
        "identity": start["identity"],
        "start": {key: start[key] for key in ("accuracy", "invalid", "num_votes")},
        "num_candidates": len(start["right"]),
        "right_at_start": {"mean": _mean(first), "lowest": min(first), "highest": max(first)},
        "num_trials": len(records),
        "seeds": sorted({r["seed"] for r in records}),
        "learning_rates": rates,
        "cpu_s": round(cpu, 1),
        "num_workers": num_workers,
        "minutes": {
            "by_cpu_seconds": round(cpu / num_workers / 60, 1),
            "by_the_clock": round((start["wall_s"] + sum(r["wall_s"] for r in records) / num_workers) / 60, 1),
        },
        "cells": every(lambda group, rate: cell(group, accuracy)),
        **{
            f"against_{base}": every(lambda group, rate, base=base: paired(group, of(base, rate), accuracy))  # type: ignore[misc]
            for base in BASES
            if base in arms
        },
        "trials": [{key: value for key, value in r.items() if key not in ("series", "answers", "commit")} for r in records],
    }
