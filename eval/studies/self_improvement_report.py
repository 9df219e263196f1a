"""The study of self-improvement to read: one table of all stages, differences by seed, and the summary as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from eval.studies.method_report import cell, table
from eval.studies.method_summary import Mean, mean_of
from eval.studies.self_improvement import ARMS
from rewardlab.data.files import write_atomic

COLUMNS = {
    "accuracy": ("one vote", 100),
    "vote_15": ("majority of 15", 100),
    "greedy_accuracy": ("greedy", 100),
    "vote_gain": ("majority less one vote", 100),
    "vote_over_greedy": ("majority less greedy", 100),
    "swap_consistency": ("same winner in both orders", 100),
    "consistent": ("reasoning agrees", 100),
    "invalid": ("invalid", 100),
    "length": ("tokens", 1),
    "cpu_s": ("CPU seconds", 1),
}
STAGES = {"rl_1": "RL", "rl_2": "second RL", "sft": "SFT on its own judgments"}
DRAWN = {
    "accuracy": ("one vote", "#4f8f4f"),
    "greedy_accuracy": ("greedy", "#888888"),
    "vote_15": ("majority of 15", "#1f4e79"),
}
COMPARED = ("accuracy", "vote_15", "greedy_accuracy", "vote_gain", "vote_over_greedy")
LAST = "rl_2"
Record = dict[str, Any]


def with_gains(row: Record) -> Record:
    """Return a row with what the majority gains over one vote and over the greedy judgment."""
    vote = row["vote_15"]
    return {**row, "vote_gain": vote - row["accuracy"], "vote_over_greedy": vote - row["greedy_accuracy"]}


def key_of(row: Record) -> str:
    """Return a stage's name, with its budget where it has one."""
    return f"{row['stage']}@{row['budget']}" if "budget" in row else str(row["stage"])


def rows_of(records: Sequence[Record], arm: str) -> dict[str, dict[int, Record]]:
    """Return the evaluated rows of an arm: stage -> seed -> row."""
    rows: dict[str, dict[int, Record]] = {}
    for record in records:
        for row in record["rows"]:
            if record["arm"] == arm and "vote_15" in row:
                rows.setdefault(key_of(row), {})[record["seed"]] = with_gains(row)
    return rows


def compared(rows: dict[int, Record], base: dict[int, Record]) -> dict[str, Mean | None]:
    """Return mean differences to ``base``, seed by seed."""
    seeds = sorted(rows.keys() & base.keys())
    return {name: mean_of([rows[seed][name] - base[seed][name] for seed in seeds]) for name in COMPARED}


def summarize(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a record."""
    if not records:
        raise ValueError("there is no finished trial to summarise")
    of, began = {arm: rows_of(records, arm) for arm in ARMS}, with_gains(start["scores"])
    budget = start["identity"]["settings"]["num_tokens"]
    first, longer, longest = (f"rl_1@{number * budget}" for number in ARMS["longer"].budgets)
    plain = of["longer"].get(first) or of["two_rounds"].get(first, {})
    second, own = of["two_rounds"].get(f"{LAST}@{budget}"), of["two_rounds"].get("sft")
    pairs = {"second round against first": (second, of["two_rounds"].get(first))}
    pairs["SFT on its own judgments against SFT on the teacher's"] = (own, dict.fromkeys(own or {}, began))
    pairs["hot token against none, after the second round"] = (of["hot_token"].get(f"{LAST}@{budget}"), second)
    pairs["hot token against none, after SFT"] = (of["hot_token"].get("sft"), own)
    pairs["two rounds against RL alone, as many tokens of RL"] = (second, of["longer"].get(longer))
    pairs["two rounds against RL alone, about as many tokens in all"] = (second, of["longer"].get(longest))
    pairs["RL alone, twice the tokens against once"] = (of["longer"].get(longer), of["longer"].get(first))
    pairs |= {f"{ARMS[arm].title}, against RL": (of[arm].get(first), plain) for arm in ("clip_higher", "kl", "grouped")}
    pairs[f"{ARMS['vote_reward'].title}, against groups of 8"] = (of["vote_reward"].get(first), of["grouped"].get(first))
    seeds = sorted({record["seed"] for record in records})
    differences = {"RL against its start": compared(plain, dict.fromkeys(seeds, began))} if plain else {}
    differences |= {title: compared(a, b) for title, (a, b) in pairs.items() if a and b}
    return {
        "commits": sorted({record["commit"] for record in records}),
        "identity": start["identity"],
        "seeds": seeds,
        "start": _short(began),
        "num_trials": len(records),
        "num_workers": num_workers,
        "minutes": round((start["cpu_s"] + sum(r["cpu_s"] for r in records)) / num_workers / 60, 1),
        "table": {
            arm: {
                stage: {
                    "num_seeds": len(rows),
                    **{name: mean_of([row.get(name) for row in rows.values()]) for name in COLUMNS},
                }
                for stage, rows in stages.items()
            }
            for arm, stages in of.items()
        },
        "differences": differences,
        "distilled": [
            {"arm": record["arm"], "seed": record["seed"], **row}
            for record in records
            for row in record["rows"]
            if row["stage"] == "distil"
        ],
        "trials": [
            {
                "arm": r["arm"],
                "seed": r["seed"],
                "rows": [{k: v for k, v in row.items() if k != "answers"} for row in r["rows"]],
            }
            for r in records
        ],
    }


def _short(row: Record) -> Record:
    return {name: value for name, value in row.items() if name != "answers"}


def _title(arm: str, stage: str) -> str:
    name, _, budget = stage.partition("@")
    tokens = f", {int(budget):,} tokens" if budget else ""
    return f"{ARMS[arm].title}: {STAGES[name]}{tokens}"


def markdown(summary: dict[str, Any]) -> str:
    """Return the tables, and what all trials had in common."""
    s = summary["identity"]["settings"]
    lines = [
        "# Does a judge go on improving without a teacher?",
        "",
        f"- Commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']}; seeds "
        f"{', '.join(map(str, summary['seeds']))}; {summary['num_trials']} trials.",
        f"- RL: StableReinforce, {s['num_tokens']:,} generated tokens a round at a constant rate of "
        f"{s['learning_rate']:g}; format 0.5 and result 1 are paid, no consistency.",
        f"- Self-distillation: {s['num_pairs']:,} training pairs, {s['samples']} judgments in each order; of pairs that a "
        f"guesser would get right as often in {s['alpha']:.0%} of cases at most, {s['keep']} right ones are kept. SFT of the "
        f"judge that all began with on these alone, {s['sft_epochs']} epochs. Hot token: {ARMS['hot_token'].hot_token:g}.",
        f"- Held out: {s['num_test']} pairs in both orders, 15 sampled judgments and a greedy one in each. One vote and the "
        "majority of 15 are of the same judgments, in one order. Intervals are Student's 95 % over seeds.",
        f"- Time: {summary['minutes']} minutes by CPU seconds with {summary['num_workers']} processes of one thread.",
    ]
    start = [
        f"{scale * summary['start'][name]:.1f}" if name in summary["start"] else "–" for name, (_, scale) in COLUMNS.items()
    ]
    rows = [["start: SFT", "", *start]]
    for arm, stages in summary["table"].items():
        for stage, row in stages.items():
            cells = [cell(row[name], scale) for name, (_, scale) in COLUMNS.items()]
            rows.append([_title(arm, stage), str(row["num_seeds"]), *cells])
    lines += table(["stage", "seeds", *(title for title, _ in COLUMNS.values())], rows)
    lines.append("Differences, seed by seed, in points:")
    lines += table(
        ["", *(COLUMNS[name][0] for name in COMPARED)],
        [[title, *(cell(means[name], 100, sign=True) for name in COMPARED)] for title, means in summary["differences"].items()],
    )
    if summary["distilled"]:
        lines.append("What self-distillation kept:")
        names = {"num_pairs": "pairs", "num_votes": "judgments", "right": "right", "num_pairs_kept": "pairs kept"}
        names |= {"num_kept": "judgments kept", "distinct_openings": "different openings"}
        lines += table(
            ["", "seed", *names.values()],
            [[ARMS[row["arm"]].title, str(row["seed"]), *(f"{row[name]:,}" for name in names)] for row in summary["distilled"]],
        )
    return "\n".join(lines).rstrip("\n") + "\n"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw one vote, the greedy judgment and the majority of 15 of each stage, with intervals over seeds."""
    rows = [("start: SFT", {name: {"mean": summary["start"][name], "interval": None} for name in DRAWN})]
    rows += [(_title(arm, stage), row) for arm, stages in summary["table"].items() for stage, row in stages.items()]
    figure, axes = plt.subplots(figsize=(8, 0.34 * len(rows) + 1.2))
    for place, (name, (title, colour)) in enumerate(DRAWN.items()):
        for n, (_, row) in enumerate(rows):
            if (value := row[name]) is None:
                continue
            y, ends = n + 0.2 * (place - 1), value["interval"]
            if ends is not None:
                axes.plot([100 * end for end in ends], [y, y], color=colour, lw=1.2, alpha=0.6)
            axes.plot(100 * value["mean"], y, "o", color=colour, ms=4.5, label=title if n == 0 else None)
    axes.set_yticks(range(len(rows)), [title for title, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("held-out judgments right, %")
    axes.grid(axis="x", color="#ddd", lw=0.6)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def write_report(summary: dict[str, Any], path: Path) -> Path:
    """Write ``path`` (Markdown), and beside it the summary and a plot of its name; return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(summary, path.with_suffix(".png"))
    write_atomic(path.with_suffix(".json"), json.dumps(summary, indent=1) + "\n")
    write_atomic(path, markdown(summary))
    return path
