"""Does the watchdog name a starved critic in time, and leave healthy runs alone?

`python -m eval.watchdog_critics`, by hand and in seconds, after `python -m eval.studies methods`: what the watchdog says of a
run is read from the run's log, which that study keeps. No trial of it is ever stopped. Results go to
eval/results/watchdog_critics.json and .md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.scripts import run_script
from eval.studies.method_summary import of_table
from eval.studies.methods import ARMS, choose_rates
from rewardlab.config import HealthConfig, RLConfig
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.training.run.watchdog import CRITIC_SIGNS, Alarms

RESULTS = Path(__file__).parent / "results"
WINDOW, FALL = 3, 0.05
# Of the study's series, by the names under which the watchdog reads them.
LOGGED = {
    "right": "reward/accuracy",
    "explained": "value/explained_variance",
    "position_bias": "advantage/position_bias",
}


def is_starved(arm: str) -> bool:
    return ARMS[arm].fit_steps is not None


def read_runs(records: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the scores of the start, and the finished runs of the method table whose critic reaches the policy."""
    start, *trials = read_complete_lines(records)
    table = of_table(trials, choose_rates(trials, list(ARMS), start["identity"]["settings"]["rates"]))
    return start["plain"], [trial for trial in table if ARMS[trial["arm"]].is_fitted and bootstraps(trial)]


def bootstraps(record: dict[str, Any]) -> bool:
    return RLConfig(**(record["config"] | {"model": "-"})).bootstraps


def batches_of(record: dict[str, Any]) -> list[dict[str, float]]:
    """Return the logs of rollout batches of which some rollout was whole, as the watchdog had them."""
    series = record["series"]
    columns = {name: series[key] for key, name in LOGGED.items() if key in series}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{"loss": 0.0, **{name: value for name, value in row.items() if value is not None}} for row in rows]


def fall_of(accuracies: Sequence[float], start: float) -> int | None:
    """Return after which rollout batch (from 1 on) the mean accuracy of the last :data:`WINDOW` is :data:`FALL` below the
    start; None where it never is."""
    means = [float(np.mean(accuracies[max(0, n - WINDOW) : n])) for n in range(WINDOW, len(accuracies) + 1)]
    return next((n for n, mean in enumerate(means, WINDOW) if mean <= start - FALL), None)


def accuracies_of(rows: Sequence[dict[str, float]]) -> list[float]:
    return [row[LOGGED["right"]] for row in rows if LOGGED["right"] in row]


def judge_run(record: dict[str, Any], start: float) -> dict[str, Any]:
    """Return when the watchdog names the critic of a run, and when accuracy had fallen, in rollout batches."""
    rows, alarms = batches_of(record), Alarms(HealthConfig(), bootstraps=True)
    events = [(n, alarms.of(row, n)) for n, row in enumerate(rows, 1)]
    named, signs = next(((n, sorted(event)) for n, event in events if set(event) & set(CRITIC_SIGNS)), (None, []))
    accuracies = accuracies_of(rows)
    return {
        "arm": record["arm"],
        "seed": record["seed"],
        "named": named,
        "signs": signs,
        "fallen": fall_of(accuracies, start),
        "last_accuracy": float(np.mean(accuracies[-WINDOW:])),
        "explained_variance": [row.get(LOGGED["explained"]) for row in rows],
        "position_bias": [row.get(LOGGED["position_bias"]) for row in rows],
    }


def summarize(records: Sequence[dict[str, Any]], plain: dict[str, Any]) -> dict[str, Any]:
    """Return every run as :func:`judge_run` has it, and by arm how many were named, and in time. ``plain``: scores of the judge
    that all but PAG start from, which has a start of its own."""
    arms, runs = {}, []
    for name in dict.fromkeys(record["arm"] for record in records):
        of_arm = sorted((record for record in records if record["arm"] == name), key=lambda record: int(record["seed"]))
        start = float((of_arm[0]["start"] or plain)["accuracy"])
        judged = [judge_run(record, start) for record in of_arm]
        runs += judged
        arms[name] = {
            "title": ARMS[name].title,
            "starved": is_starved(name),
            "runs": len(judged),
            "named": sum(run["named"] is not None for run in judged),
            "in_time": sum(
                run["named"] is not None and (run["fallen"] is None or run["named"] < run["fallen"]) for run in judged
            ),
            "named_at": [run["named"] for run in judged],
            "fallen_at": [run["fallen"] for run in judged],
            "start": start,
            "last_accuracy": [run["last_accuracy"] for run in judged],
        }
    health = HealthConfig().model_dump(include={"min_explained_variance", "max_advantage_bias"})
    return {"health": health, "commits": sorted({record["commit"] for record in records}), "arms": arms, "runs": runs}


def markdown(summary: dict[str, Any]) -> str:
    """The table of :func:`summarize`."""
    bounds = ", ".join(f"`health.{name}` {value}" for name, value in summary["health"].items())
    columns = (
        "run",
        "starved",
        "runs",
        "named",
        "before the fall",
        "named at batch",
        "fallen at batch",
        "accuracy %, start → end",
    )
    lines = [
        "# Does the watchdog name a starved critic in time?",
        "",
        f"- `python -m eval.watchdog_critics`, of the runs in `methods_hard.jsonl` (commit {', '.join(summary['commits'])});",
        f"  {bounds}.",
        f"- Fallen: the mean accuracy of {WINDOW} rollout batches is {100 * FALL:.0f} points below the start judge's",
        "  on held-out pairs. Batches are counted from the beginning of RL, seed by seed; – is never.",
        f"- Accuracy: of the start, and of the rollouts of the last {WINDOW} batches (mean of the seeds, least and most).",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
    ]
    for row in summary["arms"].values():
        at, fallen = (", ".join("–" if n is None else str(n) for n in row[key]) for key in ("named_at", "fallen_at"))
        ends = [100 * value for value in row["last_accuracy"]]
        kind, in_time = ("yes", str(row["in_time"])) if row["starved"] else ("no", "–")
        end = f"{100 * row['start']:.1f} → {np.mean(ends):.1f} ({min(ends):.1f} to {max(ends):.1f})"
        lines.append(f"| {row['title']} | {kind} | {row['runs']} | {row['named']} | {in_time} | {at} | {fallen} | {end} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=RESULTS / "methods_hard.jsonl")
    plain, runs = read_runs(parser.parse_args().records)
    summary = summarize(runs, plain)
    write_atomic(RESULTS / "watchdog_critics.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(RESULTS / "watchdog_critics.md", markdown(summary))


if __name__ == "__main__":
    run_script(main)
