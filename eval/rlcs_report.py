"""The RLCS study to read: tokens to a level of accuracy by arm, ratios by seed, and learning curves.

The first level is the setting's where uniform sampling's last accuracy, the mean over seeds, is at least the setting's margin
above it; else that accuracy less the margin. That rule was written before the first trial. Where it gives another level than
the setting's, tokens to that one are shown too, though uniform sampling may hardly ever come there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from sklearn.isotonic import IsotonicRegression

from eval.studies.plans import write_files
from eval.studies.summary import t_interval

BASES = ("uniform", "refill")
IN_A_ROW = 3  # evaluations that are averaged to say what a judge came to: one alone varies by 1.5 points
COLOURS = ("#888888", "#c0504d", "#4f8f4f", "#1f4e79", "#7fa7c9")
Record = dict[str, Any]


def tokens_to(level: float, tokens: Sequence[int], accuracy: Sequence[float], start: float) -> float | None:
    """Return the tokens at which a curve that begins at (0, ``start``) comes to ``level``, between its points linearly; None
    where it does not. The curve is the nearest one that never falls (isotonic regression): a lucky evaluation is no arrival."""
    x = np.array([0, *tokens], dtype=float)
    y = IsotonicRegression().fit_transform(x, np.array([start, *accuracy], dtype=float))
    if y[-1] < level:
        return None
    at = int(np.argmax(y >= level))
    if at == 0:
        return 0.0
    return float(x[at - 1] + (level - y[at - 1]) / (y[at] - y[at - 1]) * (x[at] - x[at - 1]))


def highest_mean(accuracy: Sequence[float]) -> float:
    """Return the highest mean of :data:`IN_A_ROW` evaluations in a row, or of all where there are fewer: what a judge came to,
    whether or not it stayed there. Raise ValueError without one."""
    if not accuracy:
        raise ValueError("expected at least one evaluation")
    width = min(IN_A_ROW, len(accuracy))
    return max(float(np.mean(accuracy[n : n + width])) for n in range(len(accuracy) - width + 1))


def ratio_to(records: Sequence[Record], base: Sequence[Record]) -> dict[str, Any] | None:
    """Return the geometric mean, over seeds that both have, of tokens to the level by those of ``base``, with Student's
    interval of its logarithm. A trial that did not arrive counts with the tokens it spent: ``at_least`` says in how many that
    was so for the arm, ``at_most`` for the base."""
    theirs = {record["seed"]: record for record in base}
    both = [(record, theirs[record["seed"]]) for record in records if record["seed"] in theirs]
    if not both:
        return None
    logs = [math.log(_spent(ours) / _spent(other)) for ours, other in both]
    interval = t_interval(logs)
    return {
        "ratio": math.exp(float(np.mean(logs))),
        "interval": None if interval is None else [math.exp(bound) for bound in interval],
        "at_least": sum(ours["to_level"] is None for ours, _ in both),
        "at_most": sum(other["to_level"] is None for _, other in both),
    }


def _spent(record: Record) -> float:
    return max(1.0, float(record["num_tokens"] if record["to_level"] is None else record["to_level"]))


def _mean(values: Sequence[float]) -> list[Any]:
    interval = t_interval(list(values))
    return [float(np.mean(values)), None if interval is None else list(interval)]


def summarize(records: Sequence[Record], start: Record, titles: Mapping[str, str]) -> dict[str, Any]:
    """Return everything the report shows. Raise ValueError without a trial of uniform sampling, which the level hangs on."""
    settings = start["identity"]["settings"]
    uniform = [record["accuracy"][-1] for record in records if record["arm"] == "uniform"]
    if not uniform:
        raise ValueError("there is no finished trial of uniform sampling")
    last = float(np.mean(uniform))
    level = settings["level"] if last >= settings["level"] + settings["margin"] else last - settings["margin"]
    arms = {arm: [record for record in records if record["arm"] == arm] for arm in titles}
    table = {}
    for arm, of_arm in arms.items():
        if not of_arm:
            continue
        series = {name: [value for trial in of_arm for value in trial["series"].get(name, [])] for name in of_arm[0]["series"]}
        table[arm] = {
            "title": titles[arm],
            "num_seeds": len(of_arm),
            "last_accuracy": _mean([trial["accuracy"][-1] for trial in of_arm]),
            "highest": _mean([highest_mean(trial["accuracy"]) for trial in of_arm]),
            "over_uniform": None if arm == "uniform" else _gain(of_arm, arms["uniform"]),
            "steps": float(np.mean([trial["steps"] for trial in of_arm])),
            "series": {name: float(np.mean(values)) for name, values in series.items() if values},
        }
    levels = [_level_table(each, arms, start["accuracy"]) for each in dict.fromkeys((level, settings["level"]))]
    return {
        "commits": sorted({record["commit"] for record in records}),
        "identity": start["identity"],
        "start": {name: start[name] for name in ("accuracy", "pass_rates", "tags")},
        "seeds": sorted({record["seed"] for record in records}),
        "levels": levels,
        "cpu_minutes": round((start["cpu_s"] + sum(record["cpu_s"] for record in records)) / 60, 1),
        "table": table,
        "trials": [{name: value for name, value in trial.items() if name not in ("series", "commit")} for trial in records],
    }


def _level_table(level: float, arms: Mapping[str, Sequence[Record]], start: float) -> Record:
    """Return tokens to a level by arm, and their ratios to those of the bases."""
    trials = {
        arm: [{**trial, "to_level": tokens_to(level, trial["tokens"], trial["accuracy"], start)} for trial in of_arm]
        for arm, of_arm in arms.items()
        if of_arm
    }
    table = {
        arm: {
            "arrived": sum(trial["to_level"] is not None for trial in of_arm),
            "came_to": sum(highest_mean(trial["accuracy"]) >= level for trial in of_arm),
            "by_seed": {trial["seed"]: trial["to_level"] for trial in of_arm},
            "tokens": _mean([_spent(trial) for trial in of_arm]),
            "against": {base: ratio_to(of_arm, trials[base]) for base in BASES if base in trials and base != arm},
        }
        for arm, of_arm in trials.items()
    }
    return {"level": level, "table": table}


def _gain(records: Sequence[Record], base: Sequence[Record]) -> list[Any] | None:
    """Return the mean difference of the last accuracies, seed by seed, with its interval; None without a common seed."""
    theirs = {record["seed"]: record["accuracy"][-1] for record in base}
    gains = [record["accuracy"][-1] - theirs[record["seed"]] for record in records if record["seed"] in theirs]
    return _mean(gains) if gains else None


def _thousands(result: Sequence[Any]) -> str:
    return _with(result, 0.001, 1)


def _with(result: Sequence[Any], scale: float, digits: int) -> str:
    mean, interval = result
    text = f"{scale * mean:.{digits}f}"
    return text if interval is None else f"{text} [{scale * interval[0]:.{digits}f}, {scale * interval[1]:.{digits}f}]"


def _ratio(result: Record | None) -> str:
    if result is None:
        return "–"
    text = f"{result['ratio']:.2f}"
    if result["interval"] is not None:
        text += f" [{result['interval'][0]:.2f}, {result['interval'][1]:.2f}]"
    notes = [f"{word} in {result[name]}" for name, word in (("at_least", "at least"), ("at_most", "at most")) if result[name]]
    return text + (f" ({', '.join(notes)})" if notes else "")


def markdown(summary: dict[str, Any], name: str) -> str:
    """The table, the ratios by seed, and what all trials had in common."""
    settings, start = summary["identity"]["settings"], summary["start"]
    rates, levels = np.array(start["pass_rates"]), summary["levels"]
    lines = [
        "# Does RLCS save tokens?",
        "",
        f"- `python -m eval.rlcs`, commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']}; seeds "
        f"{', '.join(map(str, summary['seeds']))}; {len(summary['trials'])} trials, {summary['cpu_minutes']} CPU minutes.",
        f"- Start: an SFT judge, right in {100 * start['accuracy']:.1f} % of sampled held-out votes. Trained on "
        f"{settings['num_pairs']} pairs in both orders; tags "
        + ", ".join(f"{tag or 'none'} {100 * share:.0f} %" for tag, share in start["tags"].items())
        + f". Of these prompts the start is always right in {100 * (rates == 1).mean():.0f} % (8 votes), never in "
        f"{100 * (rates == 0).mean():.0f} %.",
        f"- Every trial generates {settings['num_tokens']:,} tokens or a little more, thrown away or not, at a constant "
        f"rate of {settings['learning_rate']:g}; rollout batches of {settings['rollout_batch_size']} are trained on in steps "
        f"of {settings['batch_size']}.",
        f"- Every {settings['eval_tokens']:,} tokens: one sampled vote on {settings['num_test']} held-out pairs in both "
        f"orders. The level was to be {100 * settings['level']:.0f} %, or uniform sampling's last accuracy less "
        f"{100 * settings['margin']:.0f} points where that is lower. A trial arrives where the isotonic regression of its "
        "accuracies does, and so only where it stays; one that does not counts with all its tokens. Highest: the best mean of "
        f"{IN_A_ROW} evaluations in a row, whether or not it stays.",
        "- Intervals are Student's 95 % over seeds; of ratios, over logarithms, seed by seed.",
        "",
        "| | last accuracy, % | over uniform sampling's, points | highest, % | updates |",
        "|---|---|---|---|---|",
    ]
    for row in summary["table"].values():
        over = "–" if row["over_uniform"] is None else _with(row["over_uniform"], 100, 1)
        cells = [_with(row["last_accuracy"], 100, 1), over, _with(row["highest"], 100, 1), f"{row['steps']:.0f}"]
        lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    for each in levels:
        lines += [
            "",
            f"| | thousand tokens to {100 * each['level']:.1f} % | arrived and stayed | came to it | by uniform sampling's "
            "| by refill's |",
            "|---|---|---|---|---|---|",
        ]
        for arm, row in each["table"].items():
            title, number = (summary["table"][arm][name] for name in ("title", "num_seeds"))
            ratios = " | ".join(_ratio(row["against"].get(base)) for base in BASES)
            counts = " | ".join(f"{row[name]} of {number}" for name in ("arrived", "came_to"))
            lines.append(f"| {title} | {_thousands(row['tokens'])} | {counts} | {ratios} |")
    lines += [
        "",
        "What was drawn, in the mean over all rollout batches:",
        "",
        "| | mixed groups, % | groups thrown away | factor | repeated, % | easy prompts, % of all | of those drawn |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in summary["table"].values():
        means = row["series"]
        if "sampling/mixed_frac" in means:
            cells = [
                row["title"],
                f"{100 * means['sampling/mixed_frac']:.0f}",
                f"{means['sampling/discarded_groups']:.1f}",
                f"{means['sampling/oversampling']:.2f}",
                f"{100 * means['sampling/short_frac']:.1f}",
                *(f"{100 * means[f'tier/easy{drawn}']:.0f}" for drawn in ("", "_drawn")),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n![Accuracy by generated tokens]({name}.png)\n"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Held-out accuracy by tokens: the mean over seeds of each arm, and its interval."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    grid = np.linspace(0, summary["identity"]["settings"]["num_tokens"], 40)
    for (arm, row), colour in zip(summary["table"].items(), COLOURS, strict=False):
        curves = [
            np.interp(grid, [0, *trial["tokens"]], [summary["start"]["accuracy"], *trial["accuracy"]])
            for trial in summary["trials"]
            if trial["arm"] == arm
        ]
        bands = [t_interval(column.tolist()) for column in np.array(curves).T]
        axes.plot(grid / 1000, 100 * np.mean(curves, 0), color=colour, label=row["title"])
        if all(band is not None for band in bands):
            low, high = (100 * np.array([band[side] for band in bands if band is not None]) for side in (0, 1))
            axes.fill_between(grid / 1000, low, high, color=colour, alpha=0.12, lw=0)
    for each in summary["levels"]:
        axes.axhline(100 * each["level"], color="#888", ls="--", lw=1)
    axes.set(xlabel="generated tokens, thousands", ylabel="held-out votes right, %")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def write_report(summary: dict[str, Any], out: Path, name: str) -> Path:
    """Write the three files of the report to ``out``; return the first."""
    return write_files(name, summary, out, markdown=lambda values: markdown(values, name), draw=draw)
