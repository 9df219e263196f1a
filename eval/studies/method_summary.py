"""The records of the method study, summarised: pure functions of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eval.studies.methods import ARMS, VALIDATION_SEED, choose_rates, validated
from eval.studies.summary import t_interval

BASE = "stable_reinforce"
COLUMNS = {  # of a budget's row: title, scale, digits
    "accuracy": ("sampled accuracy", 100, 1),
    "greedy_accuracy": ("greedy accuracy", 100, 1),
    "vote_15": ("majority of 15", 100, 1),
    "unlike": ("greedy, unlike world", 100, 1),
    "swap_consistency": ("same winner in both orders", 100, 1),
    "consistent": ("reasoning agrees", 100, 1),
    "invalid": ("invalid", 100, 1),
    "length": ("tokens", 1, 1),
    "num_tokens": ("generated in training", 1, 0),
    "steps": ("steps", 1, 0),
    "train_cpu_s": ("CPU seconds", 1, 0),
}
COMPARED = ("accuracy", "greedy_accuracy", "vote_15", "swap_consistency")
REVISION = ("first", "last", "lost", "mended", "revised")
WIDTH = 15_000  # tokens of a point of a learning curve
Record = dict[str, Any]
Mean = dict[str, Any]  # mean, interval (None for one seed)


def mean_of(values: Sequence[float | None]) -> Mean | None:
    """Return the mean with Student's 95 % interval over seeds; None where a value is missing or there is none."""
    present = [float(value) for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    interval = t_interval(present)
    return {"mean": float(np.mean(present)), "interval": None if interval is None else list(interval)}


def differences(rows: dict[int, Record], base: dict[int, Record], name: str) -> Mean | None:
    """Return the mean difference to ``base`` of rows by seed; None without a seed in common, or where a number is missing."""
    seeds = sorted(rows.keys() & base.keys())
    pairs = [(rows[seed].get(name), base[seed].get(name)) for seed in seeds]
    return mean_of([None if a is None or b is None else a - b for a, b in pairs])


def rows_at(records: Sequence[Record], budget: int) -> dict[int, Record]:
    """Return the row of a budget by seed."""
    return {record["seed"]: row for record in records for row in record["budgets"] if row["budget"] == budget}


def start_of(record: Record, start: Record) -> Record:
    """Return the scores of what a trial began from."""
    return dict(record["start"] or start["plain"])


def arm_row(records: Sequence[Record], base: Sequence[Record], start: Record, budget: int) -> dict[str, Any]:
    """Return an arm's row at a budget: means, and differences to ``base`` and to its start, seed by seed."""
    rows, theirs = rows_at(records, budget), rows_at(base, budget)
    began = {record["seed"]: start_of(record, start) for record in records}
    columns = {name: mean_of([row.get(name) for row in rows.values()]) for name in COLUMNS}
    return {
        "num_seeds": len(rows),
        "rates": sorted({record["learning_rate"] for record in records}),
        **{name: value for name, value in columns.items() if value is not None},
        "against_base": {name: differences(rows, theirs, name) for name in COMPARED},
        "gain": {name: differences(rows, began, name) for name in COMPARED},
        "non_finite": sum(record["status"] != "finished" for record in records),
    }


def curve(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return an arm's learning curve: the share of right rollouts (PAG: at the last judgment), averaged over
    :data:`WIDTH` tokens, its mean over seeds and the lowest and highest seed. Only where every seed has rollouts."""
    points: dict[int, list[float]] = {}
    for record in records:
        series = record["series"]
        right = series.get("last_right") or series.get("right") or [None] * len(series["tokens"])
        bins: dict[int, list[float]] = {}
        for tokens, value in zip(series["tokens"], right, strict=True):
            if value is not None:
                bins.setdefault(int(tokens // WIDTH), []).append(value)
        for place, values in bins.items():
            points.setdefault(place, []).append(float(np.mean(values)))
    whole = {place: values for place, values in sorted(points.items()) if len(values) == len(records)}
    return {
        "tokens": [(place + 0.5) * WIDTH for place in whole],
        "mean": [float(np.mean(values)) for values in whole.values()],
        "low": [min(values) for values in whole.values()],
        "high": [max(values) for values in whole.values()],
    }


def critic_of(records: Sequence[Record]) -> dict[str, Any] | None:
    """Return what the fits of an arm's critics took and reached, and what is explained in RL; None without a critic."""
    if any(record["fit"] is None for record in records):
        return None
    return {
        "fit_steps": mean_of([record["fit"]["steps"] for record in records]),
        "fit_tokens": mean_of([record["fit"]["num_tokens"] for record in records]),
        "fit_cpu_s": mean_of([record["fit"]["cpu_s"] for record in records]),
        "fitted": mean_of([_last(record["fit"]["explained"]) for record in records]),
        "first": mean_of([(record["explained"] or {}).get("first") for record in records]),
        "last": mean_of([(record["explained"] or {}).get("last") for record in records]),
    }


def _last(values: Sequence[float | None]) -> float | None:
    present = [value for value in values[-3:] if value is not None]
    return float(np.mean(present)) if present else None


def revision(records: Sequence[Record], budget: int) -> dict[str, Any] | None:
    """Return the shares of verification at a budget, and the net gain; None for an arm that does not verify."""
    rows = [row["revision"] for row in rows_at(records, budget).values() if "revision" in row]
    if not rows:
        return None
    shares = {name: mean_of([row[name] for row in rows]) for name in REVISION}
    return {**shares, "net": mean_of([row["mended"] - row["lost"] for row in rows])}


def cpu_seconds(records: Sequence[Record], start: Record) -> dict[str, float]:
    """Return the CPU seconds of all trials, of the fits of critics (each once) and of the starts."""
    fits: dict[tuple[Any, ...], float] = {  # PAG's is one for all seeds; one that was made again counts again
        (
            ("pag",) if r["arm"] == "pag" else (ARMS[r["arm"]].fit_steps, r["seed"]),
            r["fit"]["cpu_s"],
        ): r["fit"]["cpu_s"]
        for r in records
        if r["fit"]
    }
    starts = [start["cpu_s"], *(r["start"]["cpu_s"] for r in records if r["start"])]
    return {
        "trials": round(sum(r["cpu_s"] for r in records), 1),
        "fits": round(sum(fits.values()), 1),
        "starts": round(starts[0] + max(starts[1:], default=0.0), 1),
    }


def of_table(records: Sequence[Record], chosen: Mapping[str, float]) -> list[Record]:
    """Return the records of the table: at an arm's chosen rate, where there is one, and not of another that was chosen once."""
    study = [record for record in records if record["seed"] < VALIDATION_SEED]
    return [record for record in study if chosen.get(record["arm"], record["learning_rate"]) == record["learning_rate"]]


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    if not records:
        raise ValueError("there is no finished trial to summarise")
    budgets = start["identity"]["settings"]["budgets"]
    chosen = choose_rates(records, list(ARMS), start["identity"]["settings"]["rates"])
    study, decided = of_table(records, chosen), [arm for arm in validated(list(ARMS)) if arm in chosen]
    of = {arm: rows for arm in ARMS if (rows := [r for r in study if r["arm"] == arm])}
    base, cpu = of.get(BASE, []), cpu_seconds(records, start)
    tried = [record for record in records if record["seed"] >= VALIDATION_SEED]
    return {
        "commits": sorted({record["commit"] for record in records}),
        "identity": start["identity"],
        "start": {name: value for name, value in start["plain"].items() if name != "answers"},
        "pag_start": next(({k: v for k, v in r["start"].items() if k != "answers"} for r in records if r["start"]), None),
        "seeds": sorted({record["seed"] for record in study}),
        "num_trials": len(records),
        "num_workers": num_workers,
        "cpu_s": cpu,
        "minutes": round(sum(cpu.values()) / num_workers / 60, 1),
        "validation": {
            arm: {f"{r['learning_rate']:g}": r["budgets"][0]["accuracy"] for r in tried if r["arm"] == arm} for arm in decided
        },
        "chosen": {arm: chosen[arm] for arm in decided},
        "table": {
            str(b): {arm: arm_row(rows, base, start, b) for arm, rows in of.items() if rows_at(rows, b)} for b in budgets
        },
        "critics": {arm: critic for arm, rows in of.items() if (critic := critic_of(rows))},
        "revision": {str(b): {arm: shares for arm, rows in of.items() if (shares := revision(rows, b))} for b in budgets},
        "events": {arm: _events(rows) for arm, rows in of.items()},
        "curves": {arm: curve(rows) for arm, rows in of.items()},
        "trials": [_short(record) for record in records],
    }


def _events(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [{"seed": record["seed"], **event} for record in records for event in record["events"]]


def _short(record: Record) -> Record:
    """A trial without its series and texts, which are in the file of records."""
    short = {key: value for key, value in record.items() if key not in ("series", "start", "config", "events", "fit")}
    short["budgets"] = [{key: value for key, value in row.items() if key != "answers"} for row in record["budgets"]]
    return short
