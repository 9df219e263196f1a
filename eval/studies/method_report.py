"""The method table to read: Markdown, one plot, and the summary as JSON. Numbers; what they mean is left open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from eval.studies.methods import ARMS
from eval.studies.plans import write_files
from eval.studies.summary import t_interval

NAME, BASE = "methods", "stable_reinforce"
COLUMNS = {
    "accuracy": ("sampled accuracy", 100),
    "greedy_accuracy": ("greedy accuracy", 100),
    "swap_consistency": ("same winner in both orders", 100),
    "consistent": ("reasoning agrees", 100),
    "invalid": ("invalid", 100),
    "length": ("tokens", 1),
    "steps": ("steps", 1),
    "num_tokens": ("tokens generated, thousands", 0.001),
    "train_cpu_s": ("CPU seconds", 1),
}
STARTS = ("plain", "verifying", "verified")  # PAG's before and after it verifies its judgments
Record = dict[str, Any]


def _mean(records: Sequence[Record], name: str) -> tuple[float, list[float] | None]:
    values = [float(record[name]) for record in records]
    interval = t_interval(values)
    return float(np.mean(values)), None if interval is None else list(interval)


def _paired(records: Sequence[Record], base: Sequence[Record], name: str) -> dict[str, Any] | None:
    """The difference to ``base``, seed by seed; None without a seed in common."""
    theirs = {record["seed"]: record[name] for record in base}
    differences = [record[name] - theirs[record["seed"]] for record in records if record["seed"] in theirs]
    if not differences:
        return None
    interval = t_interval(differences)
    return {"difference": float(np.mean(differences)), "interval": None if interval is None else list(interval)}


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    if not records:
        raise ValueError("there is no finished trial to summarise")
    arms = {arm: arm_records for arm in ARMS if (arm_records := [r for r in records if r["arm"] == arm])}
    base = arms.get(BASE, [])
    table: dict[str, Any] = {}
    for arm, arm_records in arms.items():
        table[arm] = {"num_seeds": len(arm_records), **{name: _mean(arm_records, name) for name in COLUMNS}}
        table[arm]["against"] = {name: _paired(arm_records, base, name) for name in ("accuracy", "swap_consistency", "flipped")}
        if "verified" in arm_records[0]:
            table[arm]["verified"] = _mean([r["verified"] for r in arm_records], "accuracy")
    cpu = start["cpu_s"] + sum(r["cpu_s"] for r in records)
    return {
        "commits": sorted({r["commit"] for r in records}),
        "identity": start["identity"],
        "start": {
            name: {k: v for k, v in start[name].items() if k != "answers"} for name in ("plain", "verifying", "verified")
        },
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


def _cell(result: tuple[float, list[float] | None], scale: int) -> str:
    mean, interval = result
    if interval is None:
        return f"{scale * mean:.1f}"
    return f"{scale * mean:.1f} [{scale * interval[0]:.1f}, {scale * interval[1]:.1f}]"


def _points(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    if result["interval"] is None:
        return f"{100 * result['difference']:+.1f}"
    low, high = result["interval"]
    return f"{100 * result['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def markdown(summary: dict[str, Any]) -> str:
    """The table, the differences by seed, and what all trials had in common."""
    settings, start, minutes = summary["identity"]["settings"], summary["start"], summary["minutes"]
    plain, verified = start["plain"], start["verified"]
    lines = [
        "# Which method makes a judge better?",
        "",
        f"- commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']}; seeds "
        f"{', '.join(map(str, summary['seeds']))}; {summary['num_trials']} trials.",
        f"- Start: the quickstart's judge after SFT; {100 * plain['accuracy']:.1f} % of {plain['num_votes']:,} sampled answers "
        f"right, {100 * plain['greedy_accuracy']:.1f} % greedy, the same winner in both orders "
        f"{100 * plain['swap_consistency']:.1f} %.",
        f"- Budget: {settings['num_tokens']:,} generated tokens a trial, those of the critic alone and of unused candidates "
        "included (a trial ends with the step that reaches it); rate "
        f"{settings['learning_rate']:g}, lowered to 0 over what the critic left of the budget. One rate but where named, that "
        "which the quickstart was tuned for with StableReinforce: another method may do better at its own.",
        f"- Critics are fitted alone for {settings['value_steps']} steps (two a rollout batch): too few for a plateau to end "
        "that earlier.",
        "- Reward: format 0.5 and result 1, without consistency (its endpoint), plus what the recipe adds.",
        f"- PAG starts from a judge taught to verify its own judgments ({settings['verify_steps']} more steps of SFT): "
        f"{100 * start['verifying']['accuracy']:.1f} % sampled at its first judgment, {100 * verified['accuracy']:.1f} % after "
        "verification. Its row shows the first judgment.",
        f"- Held out: {settings['num_test']} pairs in both orders, {settings['num_votes']} sampled votes and a greedy one in "
        "each; an answer without a verdict is wrong. Intervals are Student's 95 % over seeds: of training, not of other pairs.",
        f"- Time: {minutes['by_cpu_seconds']} minutes by CPU seconds on {summary['num_workers']} cores, "
        f"{minutes['by_the_clock']} by the clock.",
        "",
        "| method | " + " | ".join(title for title, _ in COLUMNS.values()) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for arm, row in summary["table"].items():
        cells = [_cell(row[name], scale) for name, (_, scale) in COLUMNS.items()]
        lines.append(f"| {ARMS[arm].title} | " + " | ".join(cells) + " |")
    lines += ["", f"Against {ARMS[BASE].title}, by seed, in points:", ""]
    lines += ["| method | sampled accuracy | same winner in both orders | winner flips with the order |", "|---|---|---|---|"]
    for arm, row in summary["table"].items():
        if arm != BASE:
            cells = [_points(row["against"][name]) for name in ("accuracy", "swap_consistency", "flipped")]
            lines.append(f"| {ARMS[arm].title} | " + " | ".join(cells) + " |")
    if "pag" in summary["table"]:
        lines += [
            "",
            f"PAG's last judgments, after its own verification: {_cell(summary['table']['pag']['verified'], 100)} % right.",
        ]
    return "\n".join(lines) + f"\n\n![Accuracy by method]({NAME}.png)\n"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Sampled accuracy of every method: its seeds, their mean and interval."""
    arms = list(summary["table"])
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(arms) + 1.2))
    for place, arm in enumerate(arms):
        seeds = [100 * trial["accuracy"] for trial in summary["trials"] if trial["arm"] == arm]
        mean, interval = summary["table"][arm]["accuracy"]
        axes.plot(seeds, [place] * len(seeds), ".", color="#9db7cf", ms=5)
        if interval is not None:
            axes.plot([100 * bound for bound in interval], [place] * 2, color="#1f4e79", lw=2)
        axes.plot(100 * mean, place, "o", color="#1f4e79", ms=6)
    axes.axvline(100 * summary["start"]["plain"]["accuracy"], color="#888", ls="--", lw=1, label="start")
    axes.set(yticks=range(len(arms)), yticklabels=[ARMS[arm].title for arm in arms], xlabel="sampled accuracy, %")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def write_report(summary: dict[str, Any], out: Path) -> Path:
    """Write the three files of the report to ``out``; return the first."""
    return write_files(NAME, summary, out, markdown=markdown, draw=draw)
