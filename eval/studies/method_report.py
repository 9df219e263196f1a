"""The report of the method study: the summary of its records, and the tables. :mod:`eval.studies.method_plots` draws it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.studies.method_plots import draw_accuracy, draw_curves
from eval.studies.methods import ARMS, BASE, PREFERENCE_RATES, VALIDATION_SEED, choose_rates, validated
from eval.studies.study import Record
from eval.studies.tables import Mean, cell, common_lines, mean_of, page, table, trial_facts
from rewardlab.data.files import write_atomic

COLUMNS = {  # of a row: title, scale, digits
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


def differences(rows: dict[int, Record], base: dict[int, Record], name: str) -> Mean | None:
    """Return the mean difference to ``base`` by seed; None without a common seed, or if a value is missing."""
    seeds = sorted(rows.keys() & base.keys())
    pairs = [(rows[seed].get(name), base[seed].get(name)) for seed in seeds]
    return mean_of([None if a is None or b is None else a - b for a, b in pairs])


def rows_at(records: Sequence[Record], budget: int) -> dict[int, Record]:
    """Return the row of a budget by seed."""
    return {record["seed"]: row for record in records for row in record["budgets"] if row["budget"] == budget}


def arm_row(records: Sequence[Record], base: Sequence[Record], start: Record, budget: int) -> dict[str, Any]:
    """Return an arm's row at a budget: means, and differences to ``base`` and to its start by seed."""
    rows, theirs = rows_at(records, budget), rows_at(base, budget)
    began = {record["seed"]: record["start"] or start["plain"] for record in records}
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
    """Return an arm's learning curve: the fraction of right rollouts (PAG: at the last judgment), averaged over :data:`WIDTH`
    tokens, as the mean, lowest and highest seed. A point needs rollouts of every seed."""
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
    """Return the cost and explained variance of an arm's critics after their fit and in RL; None without a critic."""
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
    """Return the effect of verification at a budget and its net gain; None for an arm that does not verify."""
    rows = [row["revision"] for row in rows_at(records, budget).values() if "revision" in row]
    if not rows:
        return None
    shares = {name: mean_of([row[name] for row in rows]) for name in REVISION}
    return {**shares, "net": mean_of([row["mended"] - row["lost"] for row in rows])}


def of_table(records: Sequence[Record], chosen: Mapping[str, float]) -> list[Record]:
    """Return the records of the table: those at the arm's chosen rate."""
    study = [record for record in records if record["seed"] < VALIDATION_SEED]
    return [record for record in study if chosen.get(record["arm"], record["learning_rate"]) == record["learning_rate"]]


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    facts, settings = trial_facts(records, start, num_workers), start["identity"]["settings"]
    budgets, chosen = settings["budgets"], choose_rates(records, list(ARMS), settings["rates"])
    study, decided = of_table(records, chosen), [arm for arm in validated(list(ARMS)) if arm in chosen]
    of = {arm: rows for arm in ARMS if (rows := [r for r in study if r["arm"] == arm])}
    base, tried = of.get(BASE, []), [record for record in records if record["seed"] >= VALIDATION_SEED]
    return {
        **facts,
        "start": _without_answers(start["plain"]),
        "pag_start": next((_without_answers(r["start"]) for r in records if r["start"]), None),
        "seeds": sorted({record["seed"] for record in study}),
        "validation": {
            arm: {f"{r['learning_rate']:g}": r["budgets"][0]["accuracy"] for r in tried if r["arm"] == arm} for arm in decided
        },
        "chosen": {arm: chosen[arm] for arm in decided},
        "table": {
            str(b): {arm: arm_row(rows, base, start, b) for arm, rows in of.items() if rows_at(rows, b)} for b in budgets
        },
        "critics": {arm: critic for arm, rows in of.items() if (critic := critic_of(rows))},
        "revision": {str(b): {arm: shares for arm, rows in of.items() if (shares := revision(rows, b))} for b in budgets},
        "events": {arm: [{"seed": r["seed"], **event} for r in rows for event in r["events"]] for arm, rows in of.items()},
        "curves": {arm: curve(rows) for arm, rows in of.items()},
        "trials": [
            {key: value for key, value in r.items() if key not in ("series", "start", "config", "events", "fit")}
            | {"budgets": list(map(_without_answers, r["budgets"]))}
            for r in records
        ],
    }


def _without_answers(row: Record) -> Record:
    return {key: value for key, value in row.items() if key != "answers"}


def _scores(row: dict[str, Any]) -> str:
    parts = [f"{100 * row['accuracy']:.1f} % of {row['num_votes']:,} sampled answers right"]
    parts += [f"{100 * row['greedy_accuracy']:.1f} % greedy", f"majority of 15 {100 * row['vote_15']:.1f} %"]
    return ", ".join(parts + ([f"{100 * row['unlike']:.1f} % greedy on the unlike pairs"] if "unlike" in row else []))


def _facts(summary: dict[str, Any]) -> list[str]:
    """Return what all trials share."""
    s, (first, last) = summary["identity"]["settings"], common_lines(summary)
    budgets, rates = (" and ".join(f"{budget:,}" for budget in s["budgets"]), ", ".join(f"{rate:g}" for rate in s["rates"]))
    learns = ", ".join(f"{rate:g}" for rate in PREFERENCE_RATES)
    pag = [f"PAG's start, after SFT on verifications: {_scores(row)}, last judgment." for row in [summary["pag_start"]] if row]
    return [
        first,
        f"Start: the judge after SFT; {_scores(summary['start'])}.",
        *pag,
        f"Budgets: {budgets} generated tokens in one run per seed; the judge is evaluated after the rollout batch that reaches "
        f"them. Tokens of unused candidates count. The rate is constant after {s['warmup_steps']} steps of warm-up.",
        f"Rates: each method at the best of {rates} on {s['num_validation']} validation pairs, by sampled accuracy at "
        f"{s['budgets'][0]:,} tokens with seed {VALIDATION_SEED}; an arm that differs from StableReinforce in one part takes "
        f"its rate. Preference optimisation, on the start's own votes: the best of {learns}; it ends once it has used the CPU "
        "seconds of StableReinforce's validation trials, sampling included.",
        f"Critics are fitted first, outside the budgets, for at most {s['value_steps']} steps of {s['value_batch_size']} "
        f"rollouts at rate {s['value_learning_rate']:g}. PPO, VC-PPO, VAPO and T-PPO share one critic per seed.",
        "Reward: format 0.5 and result 1, plus the recipe's own terms; consistency is rewarded in one arm.",
        f"Held out: {s['num_test']} pairs in both orders, {s['num_votes']} sampled judgments and a greedy one in each; the "
        f"majority is of 15 judgments in one order, on {s['num_vote_pairs']} pairs. A judgment without a verdict is wrong. "
        "Intervals are Student's 95 % over seeds of training. Compare CPU seconds only within one commit.",
        last,
    ]


def budget_lines(summary: dict[str, Any], budget: str) -> list[str]:
    """Return the table of a budget, and the differences by seed."""
    rows = summary["table"][budget]
    names = [name for name in COLUMNS if any(name in row for row in rows.values())]
    lines = ["", f"## {int(budget):,} tokens"]
    lines += table(
        ["method", "rate", "seeds", *(COLUMNS[name][0] for name in names)],
        [
            [
                ARMS[arm].title,
                ", ".join(f"{rate:g}" for rate in row["rates"]),
                f"{row['num_seeds']}" + (f", {row['non_finite']} non-finite" if row["non_finite"] else ""),
                *(cell(row.get(name), *COLUMNS[name][1:]) for name in names),
            ]
            for arm, row in rows.items()
        ],
    )
    compared = [name for name in COMPARED if any(row["gain"][name] for row in rows.values())]
    for key, title, left_out in (
        ("against_base", f"Against {ARMS[BASE].title}", BASE),
        ("gain", "Against the method's own start", ""),
    ):
        lines.append(f"{title}, seed by seed, in points:")
        lines += table(
            ["method", *(COLUMNS[name][0] for name in compared)],
            [
                [ARMS[arm].title, *(cell(row[key][name], 100, sign=True) for name in compared)]
                for arm, row in rows.items()
                if arm != left_out
            ],
        )
    return lines


def validation_lines(summary: dict[str, Any]) -> list[str]:
    """Return the scores that chose the rates."""
    tried = {f"{rate:g}" for rate in summary["identity"]["settings"]["rates"]}.union(*summary["validation"].values())
    rates = sorted(map(float, tried))
    rows = [
        [
            ARMS[arm].title,
            *(f"{100 * scores[f'{rate:g}']:.1f}" if f"{rate:g}" in scores else "–" for rate in rates),
            f"{summary['chosen'][arm]:g}",
        ]
        for arm, scores in summary["validation"].items()
    ]
    head = ["method", *(f"{rate:g}" for rate in rates), "chosen"]
    return ["", "## Choice of the rates", "", "Sampled accuracy on the validation pairs, %:", *table(head, rows)]


def critic_lines(summary: dict[str, Any]) -> list[str]:
    """Return the cost of the critics' fits and their explained variance."""
    if not summary["critics"]:
        return []
    names = {"fit_steps": 0, "fit_tokens": 0, "fit_cpu_s": 0, "fitted": 2, "first": 2, "last": 2}
    head = [
        "method",
        "steps of the fit",
        "tokens",
        "CPU seconds",
        "explained variance: end of the fit",
        "first of RL",
        "end of RL",
    ]
    rows = [[ARMS[arm].title, *(cell(row[n], 1, d) for n, d in names.items())] for arm, row in summary["critics"].items()]
    return ["", "## Critics", *table(head, rows)]


def revision_lines(summary: dict[str, Any]) -> list[str]:
    """Return the gains and losses of verification."""
    rows = [
        [ARMS[arm].title, f"{int(budget):,}", *(cell(row[n], 100, sign=n == "net") for n in (*REVISION, "net"))]
        for budget, arms in summary["revision"].items()
        for arm, row in arms.items()
    ]
    head = ["method", "tokens", "first right", "last right", "right lost", "wrong mended", "revised", "net gain"]
    return ["", "## Revision, % of sampled judgments", *table(head, rows)] if rows else []


def event_lines(summary: dict[str, Any]) -> list[str]:
    """Return the watchdog's events in the runs of the table."""
    rows = [
        [ARMS[arm].title, str(event["seed"]), str(event["step"]), event["message"]]
        for arm, events in summary["events"].items()
        for event in events
    ]
    return ["", "## The watchdog's events", *table(["method", "seed", "step", "sign"], rows)] if rows else []


def markdown(summary: dict[str, Any]) -> str:
    """Return all tables."""
    lines: list[str] = []
    if summary["seeds"]:
        for budget in summary["table"]:
            lines += budget_lines(summary, budget)
        lines += ["![Accuracy by method at both budgets](methods.png)", "", "![Learning curves](methods_curves.png)"]
        lines += critic_lines(summary) + revision_lines(summary) + event_lines(summary)
    return page("Which method makes a judge better?", _facts(summary), lines + validation_lines(summary))


def write_tables(summary: dict[str, Any], out: Path) -> Path:
    """Write ``methods.md``, ``.json`` and two plots into ``out``; return the first."""
    out.mkdir(parents=True, exist_ok=True)
    if summary["seeds"]:
        draw_accuracy(summary, out / "methods.png")
        draw_curves(summary, out / "methods_curves.png")
    write_atomic(out / "methods.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(out / "methods.md", markdown(summary))
    return out / "methods.md"
