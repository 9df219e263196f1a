"""The report of the long study: each arm beside the one that it differs from, with what its judgments look like."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from eval.studies.long import ARMS
from eval.studies.method_report import differences, rows_at
from eval.studies.methods import BASE
from eval.studies.study import Record
from eval.studies.tables import cell, mean_of, page, table, trial_facts

PERCENT = 100
COLUMNS = {  # of a row: title, scale, digits
    "accuracy": ("sampled", PERCENT, 1),
    "greedy_accuracy": ("greedy", PERCENT, 1),
    "vote_5": ("majority of 5", PERCENT, 1),
    "any_5": ("any of 5", PERCENT, 1),
    "no_lines": ("without a line", PERCENT, 1),
    "all_true": ("all lines true", PERCENT, 1),
    "lines_follow": ("lines that follow", PERCENT, 1),
    "waits": ('with "wait"', PERCENT, 1),
    "follows": ("verdicts that follow", PERCENT, 1),
    "findings_true": ("right findings", PERCENT, 1),
    "length": ("tokens", 1, 0),
    "length_reasoned": ("tokens if it reasons", 1, 0),
    "length_95": ("95 % of tokens", 1, 0),
    "invalid": ("invalid", PERCENT, 1),
    "steps": ("steps", 1, 0),
    "train_cpu_s": ("CPU seconds", 1, 0),
}
COMPARED = ("accuracy", "greedy_accuracy", "vote_5", "length")
WIDTH = 50_000  # tokens of a point of a learning curve


def flat_row(row: Record) -> Record:
    """Return the scores of a judge with the majorities and any-corrects as columns."""
    votes = {f"vote_{k}": value for k, value in row.get("votes", {}).items()}
    return {**row, **votes, **{f"any_{k}": value for k, value in row.get("any", {}).items()}}


def rows_of(records: Sequence[Record], budget: int) -> dict[int, Record]:
    return {seed: flat_row(row) for seed, row in rows_at(records, budget).items()}


def arm_row(records: Sequence[Record], against: Sequence[Record], budget: int) -> dict[str, Any]:
    """Return an arm's means at a budget, and its differences by seed to its judges before RL and to the arm ``against``."""
    rows = rows_of(records, budget)
    before = {record["seed"]: flat_row(record["start"] or record["plain"]) for record in records}
    return {
        "num_seeds": len(rows),
        "non_finite": sum(record["status"] != "finished" for record in records),
        **_means(rows.values()),
        "against": {name: differences(rows, rows_of(against, budget), name) for name in COMPARED},
        "gain": {name: differences(rows, before, name) for name in COMPARED},
    }


def _means(rows: Collection[Record]) -> dict[str, Any]:
    return {
        name: mean_of([row.get(name) for row in rows], is_fraction=scale == PERCENT) for name, (_, scale, _) in COLUMNS.items()
    }


def curve(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return the fraction of right rollouts over generated tokens, and the CPU seconds at each point, as means over seeds."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for record in records:
        series = record["series"]
        right = series.get("last_right") or series.get("right") or [None] * len(series["tokens"])
        for tokens, seconds, value in zip(series["tokens"], series["cpu_s"], right, strict=True):
            if value is not None:
                bins.setdefault(int(tokens // WIDTH), []).append((value, seconds))
    points = sorted(bins.items())
    means = [np.mean(values, axis=0) for _, values in points]
    return {
        "tokens": [(place + 0.5) * WIDTH for place, _ in points],
        "right": [float(mean[0]) for mean in means],
        "cpu_s": [float(mean[1]) for mean in means],
    }


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    facts = trial_facts(records, start, num_workers)
    of = {arm: rows for arm in ARMS if (rows := [r for r in records if r["arm"] == arm])}
    plain = {record["seed"]: flat_row(record["plain"]) for record in records}
    budgets = start["identity"]["settings"]["budgets"]
    return {
        **facts,
        "start": _means(plain.values()),
        "table": {
            str(budget): {
                arm: arm_row(rows, of.get(ARMS[arm].against, []), budget) for arm, rows in of.items() if rows_at(rows, budget)
            }
            for budget in budgets
        },
        "curves": {arm: curve(rows) for arm, rows in of.items()},
    }


def _facts(summary: dict[str, Any]) -> list[str]:
    s, minutes = summary["identity"]["settings"], summary["minutes"]
    return [
        f"Commits {', '.join(summary['commits'])}; seeds {', '.join(map(str, summary['seeds']))}, each with its own pairs, "
        f"base model and SFT judge; {summary['num_trials']} trials.",
        f"Every arm: groups or batches of {s['rollout_batch_size']} rollouts, {s['batch_size']} a step, at most "
        f"{s['max_tokens']} tokens, rate {s['rates'][0]:g} unless named; reward: format 0.5 and result 1.",
        f"A training ends at a budget, or after {s['most_steps']} steps: judgments that shrink never use up their tokens.",
        f"Critics, where fitted: at most {s['value_steps']} steps of {s['value_batch_size']} rollouts, outside the budget.",
        f"Held out: {s['num_test']} pairs in both orders, {s['num_votes']} sampled judgments and a greedy one in each. A "
        "judgment without a verdict is wrong. Intervals are Student's 95 % over seeds, those of fractions cut at 0 and 100.",
        f"Time: {minutes['by_cpu_seconds']} minutes by CPU seconds on {summary['num_workers']} cores, "
        f"{minutes['by_the_clock']} by the clock.",
    ]


def markdown(summary: dict[str, Any]) -> str:
    """Return the tables of all budgets."""
    lines: list[str] = []
    for budget, rows in summary["table"].items():
        names = list(COLUMNS)
        body = [
            [
                ARMS[arm].title,
                f"{row['num_seeds']}" + (f", {row['non_finite']} non-finite" if row["non_finite"] else ""),
                *(cell(row.get(name), *COLUMNS[name][1:]) for name in names),
            ]
            for arm, row in rows.items()
        ]
        before = ["before RL", "", *(cell(summary["start"][name], *COLUMNS[name][1:]) for name in names)]
        body = [before, *body]
        lines += ["", f"## {int(budget):,} tokens", *table(["arm", "seeds", *(COLUMNS[name][0] for name in names)], body)]
        lines.append("Differences by seed, in points and tokens:")
        titles = [COLUMNS[name][0] for name in COMPARED]
        head = ["arm", *(f"{title}, gain" for title in titles), "against", *titles]
        compared = [
            [
                ARMS[arm].title,
                *(cell(row["gain"][name], *COLUMNS[name][1:], sign=True) for name in COMPARED),
                "–" if arm == BASE else ARMS[ARMS[arm].against].title,
                *("–" if arm == BASE else cell(row["against"][name], *COLUMNS[name][1:], sign=True) for name in COMPARED),
            ]
            for arm, row in rows.items()
        ]
        lines += table(head, compared)
    return page("Long judgments: what the methods do", _facts(summary), [*lines, "![Right rollouts in training](long.png)"])


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw right rollouts over generated tokens, a panel per arm, beside the arm that it is compared with."""
    arms = list(summary["curves"])
    columns = min(4, len(arms))
    figure, panels = plt.subplots(
        -(-len(arms) // columns), columns, figsize=(3.2 * columns, 2.4 * -(-len(arms) // columns)), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for axes in panels.flat[len(arms) :]:
        axes.set_axis_off()
    for axes, arm in zip(panels.flat, arms, strict=False):
        for name, style in ((ARMS[arm].against, "--"), (arm, "-")):
            if points := summary["curves"].get(name):
                thousands = [tokens / 1000 for tokens in points["tokens"]]
                axes.plot(
                    thousands, [100 * value for value in points["right"]], style, color="#1f4e79" if style == "-" else "0.6"
                )
        axes.set_title(ARMS[arm].title, fontsize=8)
        axes.tick_params(labelsize=7)
    figure.supxlabel("thousand generated tokens", fontsize=9)
    figure.supylabel("right rollouts, % (dashed: the arm that it is compared with)", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
