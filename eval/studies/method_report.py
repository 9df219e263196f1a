"""The method table to read: Markdown, and the summary as JSON. Numbers; what they mean is left open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.studies.method_plots import draw_accuracy, draw_curves
from eval.studies.method_summary import BASE, COLUMNS, COMPARED, REVISION, Mean
from eval.studies.methods import ARMS, VALIDATION_SEED
from rewardlab.config import RLConfig
from rewardlab.data.files import write_atomic
from rewardlab.training.run.watchdog import CRITIC_SIGNS

CURVES = "_curves"  # what the name of the second plot adds


def cell(value: Mean | None, scale: float = 1.0, digits: int = 1, *, sign: bool = False) -> str:
    """Return a mean with its interval in words; without it where there are no digits to show, a dash for what is none."""
    if value is None:
        return "–"
    form = f"{'+' if sign else ''},.{digits}f"
    text = f"{scale * value['mean']:{form}}"
    if value["interval"] is None or not digits:
        return text
    low, high = (f"{scale * bound:{form}}" for bound in value["interval"])
    return f"{text} [{low}, {high}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _scores(row: dict[str, Any]) -> str:
    parts = [f"{100 * row['accuracy']:.1f} % of {row['num_votes']:,} sampled answers right"]
    parts += [f"{100 * row['greedy_accuracy']:.1f} % greedy", f"majority of 15 {100 * row['vote_15']:.1f} %"]
    parts += [f"the same winner in both orders {100 * row['swap_consistency']:.1f} %"]
    return ", ".join(parts + ([f"greedy in the unlike world {100 * row['unlike']:.1f} %"] if "unlike" in row else []))


def head_lines(summary: dict[str, Any]) -> list[str]:
    """Return what all trials have in common."""
    s, cpu = summary["identity"]["settings"], summary["cpu_s"]
    seeds = ", ".join(map(str, summary["seeds"])) or "none yet"
    budgets = " and ".join(f"{budget:,}" for budget in s["budgets"])
    rates = ", ".join(f"{rate:g}" for rate in s["rates"])
    lines = [
        f"- Commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']}; seeds {seeds}; "
        f"{summary['num_trials']} trials, those that chose the rates included.",
        f"- Start: the judge after SFT; {_scores(summary['start'])}.",
        f"- Budgets: {budgets} generated tokens, of one run a seed: the judge is evaluated at the end of the "
        "rollout batch that reaches it. Tokens of unused candidates count. The rate is constant after "
        f"{s['warmup_steps']} steps of warm-up, so that a run that ended at the smaller budget would have been the same.",
        f"- Rates: each method at the best of {rates} on {s['num_validation']} validation pairs, by sampled accuracy at "
        f"{s['budgets'][0]:,} tokens with seed {VALIDATION_SEED}, which is not the study's; what differs from StableReinforce "
        "in one part has that method's rate. A critic's rate is as many times the policy's as in its recipe.",
        f"- Critics are fitted to other rollouts of the start before: at most {s['value_steps']} steps of "
        f"{s['value_batch_size']} rollouts at rate {s['value_learning_rate']:g}, a budget of their own. PPO, VC-PPO, VAPO and "
        "T-PPO begin with one critic a seed.",
        "- Reward: format 0.5 and result 1, plus what the recipe adds; consistency is paid in one arm alone, by the "
        "demonstration's checker.",
        f"- Held out: {s['num_test']} pairs in both orders, {s['num_votes']} sampled judgments and a greedy one in each; the "
        f"majority is of 15 judgments in one order, on {s['num_vote_pairs']} pairs. A judgment without a verdict is wrong. "
        "Intervals are Student's 95 % over seeds: of training, not of other pairs.",
        "- CPU seconds are of machines of different speed where trials are of different commits: compare them within one.",
        f"- Time: {summary['minutes']} minutes with {summary['num_workers']} processes of one thread, by CPU seconds: "
        f"{cpu['trials']:,.0f} of trials, {cpu['fits']:,.0f} of critics' fits, {cpu['starts']:,.0f} of starts.",
    ]
    oracles = {arm.oracle for arm in map(ARMS.__getitem__, summary["curves"]) if arm.oracle}
    for oracle in oracles:
        lines.append(
            f"- No critic but completions: every {oracle.stride}th state has the mean reward of {oracle.completions} "
            "completions by the policy as it is, those between it have that of the one before. Only at "
            f"{s['budgets'][0]:,} tokens, for the cost; tokens of these completions do not count."
        )
    if summary["pag_start"]:
        lines.insert(
            2,
            f"- PAG's start, taught to verify its judgments by {s['verify_steps']} steps of SFT at rate "
            f"{s['verify_learning_rate']:g}: {_scores(summary['pag_start'])}, at the last judgment. A turn has up to "
            f"{s['verify_max_tokens']} tokens, others' judgments up to {s['max_tokens']}. The fit of its critic ends after "
            f"{s['verify_value_patience']} rollout batches at a plateau, others' after "
            f"{RLConfig.model_fields['value_patience'].default}. It is one for all seeds.",
        )
    return lines


def budget_lines(summary: dict[str, Any], budget: str) -> list[str]:
    """Return the table of a budget, and the differences."""
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
    """Return the table by which the rates were chosen."""
    rates = summary["identity"]["settings"]["rates"]
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
    """Return what the critics' fits took, and what they explain."""
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
    """Return what verification gained and lost."""
    rows = [
        [ARMS[arm].title, f"{int(budget):,}", *(cell(row[n], 100, sign=n == "net") for n in (*REVISION, "net"))]
        for budget, arms in summary["revision"].items()
        for arm, row in arms.items()
    ]
    head = ["method", "tokens", "first right", "last right", "right lost", "wrong mended", "revised", "net gain"]
    return ["", "## Revision, % of sampled judgments", *table(head, rows)] if rows else []


def event_lines(summary: dict[str, Any]) -> list[str]:
    """Return what the watchdog saw; signs of a critic are in a report of their own, by the bounds of today."""
    rows = [
        [ARMS[arm].title, str(event["seed"]), str(event["step"]), event["message"]]
        for arm, events in summary["events"].items()
        for event in events
        if set(event["signs"]) - set(CRITIC_SIGNS)
    ]
    if not rows:
        return ["", "The watchdog saw nothing in any run of the table, but of critics (`watchdog_critics.md`)."]
    return ["", "## What the watchdog saw", *table(["method", "seed", "step", "sign"], rows)]


def markdown(summary: dict[str, Any], name: str) -> str:
    """Return all tables; the plots are ``name.png`` and ``name_curves.png``."""
    lines = ["# Which method makes a judge better?", "", *head_lines(summary)]
    if summary["seeds"]:
        for budget in summary["table"]:
            lines += budget_lines(summary, budget)
        lines += [f"![Accuracy by method at both budgets]({name}.png)", "", f"![Learning curves]({name}{CURVES}.png)"]
        lines += critic_lines(summary) + revision_lines(summary) + event_lines(summary)
    lines += validation_lines(summary)
    text = "\n".join(lines).rstrip("\n") + "\n"
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def write_report(summary: dict[str, Any], path: Path) -> Path:
    """Write ``path`` (Markdown), and beside it the summary and two plots of its name; return ``path``."""
    name = path.stem
    path.parent.mkdir(parents=True, exist_ok=True)
    if summary["seeds"]:
        draw_accuracy(summary, path.with_name(f"{name}.png"))
        draw_curves(summary, path.with_name(f"{name}{CURVES}.png"))
    write_atomic(path.with_suffix(".json"), json.dumps(summary, indent=1) + "\n")
    write_atomic(path, markdown(summary, name))
    return path
