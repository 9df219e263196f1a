"""The report of the policy study: accuracy by reward, and how far reward and truth went together."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from eval.studies.policy import ARMS
from eval.studies.study import Record
from eval.studies.tables import cell, common_lines, mean_of, page, table, trial_facts

BASE = "scalar"
SHOWN = ("accuracy", "accuracy_digits", "accuracy_scenes", "greedy_accuracy")
CURVES = ("paid", "true", "paid_for_right", "paid_for_wrong")


def _curve(records: Sequence[Record], name: str) -> list[float | None]:
    """Return the mean over seeds, batch by batch; None if no seed has a value."""
    columns = zip(*(record["curves"][name] for record in records), strict=False)
    kept = [[value for value in column if value is not None] for column in columns]
    return [float(np.mean(values)) if values else None for values in kept]


def _separation(record: Record) -> float | None:
    """Return by how much more right answers earned than wrong ones, in the last five batches with both (None: no such)."""
    pairs = list(zip(record["curves"]["paid_for_right"], record["curves"]["paid_for_wrong"], strict=True))[-5:]
    gaps = [right - wrong for right, wrong in pairs if right is not None and wrong is not None]
    return float(np.mean(gaps)) if gaps else None


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    facts = trial_facts(records, start, num_workers)
    arms = {arm: rows for arm in ARMS if (rows := [r for r in records if r["arm"] == arm])}
    base = {r["seed"]: r["accuracy"] for r in arms.get(BASE, [])}
    rows = {
        arm: {
            "num_seeds": len(of),
            **{name: mean_of([r.get(name) for r in of]) for name in ("accuracy", "accuracy_digits", "accuracy_scenes")},
            "greedy_accuracy": mean_of([r["greedy_accuracy"] for r in of]),
            "separation": mean_of([gap for r in of if (gap := _separation(r)) is not None]),
            "against": mean_of([r["accuracy"] - base[r["seed"]] for r in of if r["seed"] in base]),
            "unreadable": sum(r["unreadable"] for r in of),
            "curves": {name: _curve(of, name) for name in CURVES},
        }
        for arm, of in arms.items()
    }
    return {
        **facts,
        "start": {key: start[key] for key in ("accuracy", "greedy_accuracy", "num_questions")},
        "table": rows,
        "trials": [{key: value for key, value in r.items() if key not in ("answers", "commit")} for r in records],
    }


def _facts(summary: dict[str, Any]) -> list[str]:
    settings, start, (first, last) = summary["identity"]["settings"], summary["start"], common_lines(summary)
    hardened = summary["identity"].get("hardened", "")
    return [
        first + (f" Judges of --hardened: {hardened.replace(',', ', ')}." if hardened else ""),
        f"Start: the demonstration's base model after {settings['start_steps']} steps of SFT on answers of which "
        f"{100 * settings['start_right']:.0f} % are right: "
        f"{100 * start['accuracy']:.1f} % of sampled answers to {start['num_questions']} held-out questions right, "
        f"{100 * start['greedy_accuracy']:.1f} % greedy.",
        f"A trial: {settings['steps']} steps of {settings['rollout_batch_size']} answers, groups of {settings['group']}, "
        f"REINFORCE++-baseline, no KL term unless named, rate {settings['learning_rate']:g}. Only the reward "
        "differs. An answer is right if it says what the preferred response says.",
        f"The scalar head: {settings['scalar_steps']} steps from the judge after SFT, on the same pairs.",
        "Reward of right less wrong: how much more right answers earned than wrong ones in the last five batches, in the "
        "reward's own unit (times 100). At 0 the reward no longer tells them apart.",
        "Intervals are Student's 95 % over seeds.",
        last,
    ]


def markdown(summary: dict[str, Any]) -> str:
    """Return the table and what all trials share."""
    head = [
        "reward",
        "sampled accuracy",
        "digits",
        "scenes",
        "greedy accuracy",
        "against the scalar head",
        "reward of right less wrong",
        "unreadable",
    ]
    rows = []
    for arm, row in summary["table"].items():
        cells = [ARMS[arm].title, *(cell(row.get(name), 100) for name in SHOWN)]
        cells += [cell(row["against"], 100, sign=True) if arm != BASE else "", cell(row["separation"], 100, sign=True)]
        rows.append([*cells, str(row["unreadable"])])
    plot = "![Reward and truth over training](policy.png)"
    return page("What does a judge make of a policy?", _facts(summary), [*table(head, rows), plot])


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw reward and truth step by step, a panel per arm. If the lines part, the reward is being hacked."""
    arms = list(summary["table"])
    columns = min(3, len(arms))
    rows = -(-len(arms) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.7 * rows), sharex=True, squeeze=False)
    for axes in panels.flat[len(arms) :]:
        axes.set_axis_off()
    for axes, arm in zip(panels.flat, arms, strict=False):
        curves = summary["table"][arm]["curves"]
        axes.plot([100 * value for value in curves["true"]], color="#1f4e79", lw=1.8, label="right answers, %")
        axes.set(title=textwrap.fill(ARMS[arm].title, 40), ylim=(0, 100), xlabel="step")
        axes.title.set_fontsize(9)
        paid = axes.twinx()
        paid.plot(curves["paid"], color="#c0504d", lw=1.4, label="paid")
        paid.tick_params(axis="y", colors="#c0504d", labelsize=7)
        axes.tick_params(labelsize=7)
    figure.text(0.005, 0.5, "right answers, %", rotation=90, va="center", ha="right", color="#1f4e79")
    figure.text(0.995, 0.5, "mean reward", rotation=270, va="center", ha="left", color="#c0504d")
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
