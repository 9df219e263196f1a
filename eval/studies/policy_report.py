"""The policy study to read: what each reward made of the policy, and how far what was paid and what was true went together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from eval.studies.plans import write_files
from eval.studies.policy import ARMS
from eval.studies.summary import t_interval

NAME, BASE = "policy", "scalar"
Record = dict[str, Any]
MeanAndInterval = tuple[float, list[float] | None]


def _over_seeds(values: Sequence[float]) -> MeanAndInterval:
    interval = t_interval(values)
    return float(np.mean(values)), None if interval is None else list(interval)


def _curve(records: Sequence[Record], name: str) -> list[float | None]:
    """Mean over seeds, batch by batch; None where no seed had one."""
    columns = zip(*(record["curves"][name] for record in records), strict=False)
    kept = [[value for value in column if value is not None] for column in columns]
    return [float(np.mean(values)) if values else None for values in kept]


def _separation(record: Record) -> float | None:
    """Return by how much more right answers earned than wrong ones, in the last five batches with both (None: no such)."""
    pairs = list(zip(record["curves"]["paid_for_right"], record["curves"]["paid_for_wrong"], strict=True))[-5:]
    gaps = [right - wrong for right, wrong in pairs if right is not None and wrong is not None]
    return float(np.mean(gaps)) if gaps else None


def _against(records: Sequence[Record], base: dict[int, float]) -> MeanAndInterval | None:
    """The difference in accuracy, seed by seed; None without a seed in common."""
    gaps = [record["accuracy"] - base[record["seed"]] for record in records if record["seed"] in base]
    return _over_seeds(gaps) if gaps else None


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    if not records:
        raise ValueError("there is no finished trial to summarise")
    arms = {arm: arm_records for arm in ARMS if (arm_records := [r for r in records if r["arm"] == arm])}
    base = {r["seed"]: r["accuracy"] for r in arms.get(BASE, [])}
    table = {}
    for arm, arm_records in arms.items():
        table[arm] = {
            "num_seeds": len(arm_records),
            "accuracy": _over_seeds([r["accuracy"] for r in arm_records]),
            "greedy_accuracy": _over_seeds([r["greedy_accuracy"] for r in arm_records]),
            "separation": _over_seeds(separations)
            if (separations := [s for r in arm_records if (s := _separation(r)) is not None])
            else None,
            "unreadable": sum(r["unreadable"] for r in arm_records),
            "curves": {name: _curve(arm_records, name) for name in ("paid", "true", "paid_for_right", "paid_for_wrong")},
            "against": _against(arm_records, base),
        }
    cpu = start["cpu_s"] + sum(r["cpu_s"] for r in records)
    return {
        "commits": sorted({r["commit"] for r in records}),
        "identity": start["identity"],
        "start": {key: start[key] for key in ("accuracy", "greedy_accuracy", "num_questions")},
        "seeds": sorted({r["seed"] for r in records}),
        "num_trials": len(records),
        "num_workers": num_workers,
        "minutes": {
            "by_cpu_seconds": round(cpu / num_workers / 60, 1),
            "by_the_clock": round((start["wall_s"] + sum(r["wall_s"] for r in records) / num_workers) / 60, 1),
        },
        "table": table,
        "trials": [{key: value for key, value in r.items() if key not in ("answers", "commit")} for r in records],
    }


def _cell(result: MeanAndInterval | list[Any] | None, scale: float = 100, sign: str = "") -> str:
    if result is None:
        return "–"
    mean, interval = result
    if interval is None:
        return f"{scale * mean:{sign}.1f}"
    return f"{scale * mean:{sign}.1f} [{scale * interval[0]:{sign}.1f}, {scale * interval[1]:{sign}.1f}]"


def markdown(summary: dict[str, Any]) -> str:
    """The table and what all trials had in common."""
    settings, start, minutes = summary["identity"]["settings"], summary["start"], summary["minutes"]
    given = summary["identity"].get("hardened", "").split(",")
    of_given = f"; judges given as --hardened: {', '.join(given)}" if given != [""] else ""
    lines = [
        "# What does a judge make of a policy?",
        "",
        f"- commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']} (the quickstart's, after RL)"
        f"{of_given}; seeds {', '.join(map(str, summary['seeds']))}; {summary['num_trials']} trials.",
        f"- Start: the demonstration's base model after {settings['start_steps']} steps of SFT on answers of which "
        f"{100 * settings['start_right']:.0f} % are right: "
        f"{100 * start['accuracy']:.1f} % of sampled answers to {start['num_questions']} held-out questions right, "
        f"{100 * start['greedy_accuracy']:.1f} % greedy.",
        f"- A trial: {settings['steps']} steps of {settings['rollout_batch_size']} answers, groups of {settings['group']}, "
        f"REINFORCE++-baseline, no KL term but where named, rate {settings['learning_rate']:g}. Only what "
        "pays differs. An answer is right that says what the preferred response says.",
        f"- The scalar head: {settings['scalar_steps']} steps from the judge after SFT, on the same pairs.",
        "- Paid right less wrong: how much more right answers earned than wrong ones in the last five batches, in the reward's "
        "own unit (probability times 100; a scalar's times 100). At 0 the reward no longer tells them apart.",
        "- Intervals are Student's 95 % over seeds.",
        f"- Time: {minutes['by_cpu_seconds']} minutes by CPU seconds on {summary['num_workers']} cores, "
        f"{minutes['by_the_clock']} by the clock.",
        "",
        "| paid by | sampled accuracy | greedy accuracy | against the scalar head | paid right less wrong | unreadable |",
        "|---|---|---|---|---|---|",
    ]
    for arm, row in summary["table"].items():
        cells = [_cell(row["accuracy"]), _cell(row["greedy_accuracy"])]
        cells.append(_cell(row["against"], sign="+") if arm != BASE else "")
        cells += [_cell(row["separation"], sign="+"), str(row["unreadable"])]
        lines.append(f"| {ARMS[arm].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n![Paid and true over training]({NAME}.png)\n"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw reward and truth step by step, a panel per arm. Where the lines part, the reward is being hacked."""
    arms = list(summary["table"])
    columns = min(3, len(arms))
    rows = -(-len(arms) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.7 * rows), sharex=True, squeeze=False)
    for axes in panels.flat[len(arms) :]:
        axes.set_axis_off()
    for axes, arm in zip(panels.flat, arms, strict=False):
        curves = summary["table"][arm]["curves"]
        axes.plot([100 * value for value in curves["true"]], color="#1f4e79", lw=1.8, label="right answers, %")
        axes.set(title=ARMS[arm].title, ylim=(0, 100), xlabel="step")
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


def write_report(summary: dict[str, Any], out: Path) -> Path:
    """Write the three files of the report to ``out``; return the first."""
    return write_files(NAME, summary, out, markdown=markdown, draw=draw)
