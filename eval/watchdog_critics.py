"""Does the watchdog name a starved critic in time, and leave healthy runs alone?

`python -m eval.watchdog_critics --run runs/quickstart --out runs/watchdog_critics`, by hand, after the quickstart's SFT. Runs
are short, from the judge after SFT, and are never stopped: what the watchdog would have said is read from their logs. What is
finished in OUT is kept. Results go to eval/results/watchdog_critics.json and .md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import numpy as np
import torch

from eval.studies.critics import Clock, CriticLab, fit_critic, logged
from rewardlab.config import HealthConfig
from rewardlab.data.files import write_atomic
from rewardlab.training.run.watchdog import CRITIC_SIGNS, Alarms

RESULTS = Path(__file__).parent / "results"
BUDGET = 100  # optimizer steps of a fit
WINDOW, FALL = 3, 0.05


@dataclass(frozen=True)
class Arm:
    """A recipe, the steps for which its critic is fitted first, and whether that starves it."""

    recipe: str
    fit_steps: int
    starved: bool
    changes: dict[str, Any] = field(default_factory=dict)
    bootstraps: bool = True  # as Method.bootstraps


ARMS = {
    "VC-PPO, critic of 6 steps": Arm("vc_ppo", 6, starved=True),
    "PPO, no fit": Arm("ppo", 0, starved=True),
    "VC-PPO": Arm("vc_ppo", BUDGET, starved=False),
    "VAPO": Arm("vapo", BUDGET, starved=False),
    "PPO, lambda 1, no fit": Arm(
        "ppo", 0, starved=False, changes={"gae_lambda": 1.0, "gae_lambda_critic": 1.0}, bootstraps=False
    ),
}


def critic_of(lab: CriticLab, steps: int, seed: int, out: Path) -> Path | None:
    """Return the folder of a critic that was fitted for at most ``steps`` steps, made once; None for none."""
    if not steps:
        return None
    folder = out / f"critic-{steps}-{seed}"
    if not (folder / "fit.json").exists():
        config = lab.fit_config("vc_ppo", seed, value_pretrain_steps=steps)
        trainer, clock = lab.trainer(config, folder, value_only=True), Clock()
        trainer.add_callback(clock)
        fit = fit_critic(trainer, config)
        trainer.critic.save(folder / "critic")
        write_atomic(folder / "fit.json", json.dumps({**asdict(fit), "rows": logged(trainer, clock)}) + "\n")
    return folder / "critic"


def run(lab: CriticLab, name: str, seed: int, out: Path, steps: int) -> dict[str, Any]:
    """Run RL for ``steps`` optimizer steps and return its logs."""
    arm = ARMS[name]
    critic = critic_of(lab, arm.fit_steps, seed, out)
    changes = {"value_init": str(critic)} if critic else {}
    config = lab.config(arm.recipe, seed, max_steps=steps, value_pretrain_steps=0, **changes, **arm.changes)
    trainer, clock = lab.trainer(config, out / "work"), Clock()
    trainer.add_callback(clock)
    trainer.train()
    return {"arm": name, "seed": seed, "commit": lab.commit, "rows": logged(trainer, clock)}


def file_of(out: Path, name: str, seed: int) -> Path:
    return out / f"{name.replace(', ', '_').replace(' ', '_')}-{seed}.json"


def read_batches(record: dict[str, Any]) -> list[dict[str, float]]:
    """Return the lines that log a rollout batch."""
    return [row for row in record["rows"] if "reward/accuracy" in row]


def fall_of(accuracies: Sequence[float], start: float) -> int | None:
    """Return after which rollout batch (from 1 on) the mean accuracy of the last :data:`WINDOW` is :data:`FALL` below the
    start; None where it never is."""
    means = [float(np.mean(accuracies[max(0, n - WINDOW) : n])) for n in range(WINDOW, len(accuracies) + 1)]
    return next((n for n, mean in enumerate(means, WINDOW) if mean <= start - FALL), None)


def judge_run(record: dict[str, Any], start: float) -> dict[str, Any]:
    """Return when the watchdog would first have named the critic in a run, and when accuracy had fallen, in rollout batches."""
    arm, rows = ARMS[record["arm"]], read_batches(record)
    alarms = Alarms(HealthConfig(), bootstraps=arm.bootstraps)
    events = [(n, alarms.of(row, n)) for n, row in enumerate(rows, 1)]
    named, signs = next(((n, sorted(event)) for n, event in events if set(event) & set(CRITIC_SIGNS)), (None, []))
    accuracies = [row["reward/accuracy"] for row in rows]
    return {
        "arm": record["arm"],
        "seed": record["seed"],
        "named": named,
        "signs": signs,
        "fallen": fall_of(accuracies, start),
        "accuracy": accuracies,
        "explained_variance": [row.get("value/explained_variance") for row in rows],
        "position_bias": [row.get("advantage/position_bias") for row in rows],
    }


def summarize(records: Sequence[dict[str, Any]], start: float) -> dict[str, Any]:
    """Return every run as :func:`judge_run` has it, and by arm how many were named, and in time."""
    runs = [judge_run(record, start) for record in records]
    arms = {}
    for name, arm in ARMS.items():
        of_arm = [run for run in runs if run["arm"] == name]
        if of_arm:
            named = [run for run in of_arm if run["named"] is not None]
            in_time = [run for run in named if run["fallen"] is None or run["named"] < run["fallen"]]
            last = [float(np.mean(run["accuracy"][-WINDOW:])) for run in of_arm]
            arms[name] = {
                "starved": arm.starved,
                "runs": len(of_arm),
                "named": len(named),
                "in_time": len(in_time),
                "named_at": [run["named"] for run in of_arm],
                "fallen_at": [run["fallen"] for run in of_arm],
                "last_accuracy": [min(last), float(np.mean(last)), max(last)],
            }
    health = HealthConfig().model_dump(include={"min_explained_variance", "max_advantage_bias"})
    return {"start": start, "health": health, "commits": sorted({r["commit"] for r in records}), "arms": arms, "runs": runs}


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
        "accuracy at the end, %",
    )
    lines = [
        "# Does the watchdog name a starved critic in time?",
        "",
        f"- `python -m eval.watchdog_critics`, commit {', '.join(summary['commits'])}; {bounds}.",
        f"- All runs start from the quickstart's judge after SFT, right in {summary['start']:.1%} of its rollouts.",
        f"- Fallen: the mean accuracy of {WINDOW} rollout batches is {100 * FALL:.0f} points below the start's. Batches are",
        "  counted from the beginning of RL, seed by seed; – is never, within the run.",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
    ]
    for name, row in summary["arms"].items():
        at, fallen = (", ".join("–" if n is None else str(n) for n in row[key]) for key in ("named_at", "fallen_at"))
        least, mean, most = (100 * value for value in row["last_accuracy"])
        kind = "yes" if row["starved"] else "no"
        in_time = str(row["in_time"]) if row["starved"] else "–"
        end = f"{mean:.1f} [{least:.1f}, {most:.1f}]"
        lines.append(f"| {name} | {kind} | {row['runs']} | {row['named']} | {in_time} | {at} | {fallen} | {end} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("runs/watchdog_critics"))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--arms", default=";".join(ARMS), help="Some of them, by semicolons.")
    parser.add_argument("--steps", type=int, default=30, help="Optimizer steps of RL, two a rollout batch.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    lab = CriticLab(options.run)
    plan = [(name, int(seed)) for seed in options.seeds.split(",") for name in options.arms.split(";")]
    todo = [(name, seed) for name, seed in plan if not file_of(options.out, name, seed).exists()]
    print(f"{len(plan)} runs, {len(todo)} to do, of about 2 minutes on one core each, and a fit a seed", flush=True)
    for place, (name, seed) in enumerate(todo):
        started = time.monotonic()
        record = run(lab, name, seed, options.out, options.steps)
        write_atomic(file_of(options.out, name, seed), json.dumps(record) + "\n")
        print(f"{name}, seed {seed}: {time.monotonic() - started:.0f} s; {len(todo) - place - 1} left", flush=True)
    fits = [json.loads(path.read_text()) for path in sorted(options.out.glob(f"critic-{BUDGET}-*/fit.json"))]
    start = float(np.mean([row["reward/accuracy"] for fit in fits for row in fit["rows"] if "reward/accuracy" in row]))
    summary = summarize([json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))], start)
    write_atomic(RESULTS / "watchdog_critics.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(RESULTS / "watchdog_critics.md", markdown(summary))


if __name__ == "__main__":
    main()
