"""A tiny policy trained by TRL's GRPO against a running endpoint, and best-of-N by its judge: right answers before and after.

``python eval/closed_loop.py`` after a quickstart (some 15 minutes on two cores for three seeds). Accuracies of one policy have
intervals over questions, those of trained ones over seeds (Student's). A finished seed is kept in ``--work``; run
the same command again after an interruption. Writes ``eval/results/closed_loop.json``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

sys.path[:0] = [str(Path(__file__).parents[1])]  # for eval.studies, however this is started

from eval.studies import closed_loop as loop
from rewardlab.data.files import write_atomic
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.models.loading import load_model


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean and Student's 95 % interval."""
    mean, half = (
        float(np.mean(values)),
        float(np.std(values, ddof=1) / np.sqrt(len(values)) * student.ppf(0.975, len(values) - 1)),
    )
    return {"mean": mean, "interval": [mean - half, mean + half], "seeds": list(values)}


def over_questions(scores: Sequence[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(scores)), "interval": list(mean_interval(scores))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--work", type=Path, default=Path("runs/closed_loop"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=loop.Settings.steps)
    parser.add_argument("--policy", default="weighted", help="of the endpoint: majority or weighted")
    parser.add_argument("--out", type=Path, default=Path("eval/results/closed_loop.json"))
    options = parser.parse_args()
    settings = replace(loop.Settings(), steps=options.steps)
    pairs, test = loop.questions(options.run / "demo" / "train.parquet"), loop.held_out(options.run, settings)
    options.work.mkdir(parents=True, exist_ok=True)
    policy = loop.first_policy(options.run, options.work, settings)
    judge = options.run / "rl" / "final"
    with loop.serving(judge, "--max-tokens", "64", "--batch-size", "256", "--policy", options.policy) as url:
        model, processor = load_model(str(policy), device="cpu")
        texts = loop.answers(model, processor, test, settings, num=settings.candidates, seed=1)
        start_time = time.perf_counter()
        best = loop.best_of_n(texts, test, url)
        seconds = time.perf_counter() - start_time
        before = loop.right_share(texts, test)
        trials = []
        for seed in range(options.seeds):
            path = options.work / f"{settings.steps}_steps_{options.policy}_seed_{seed}.json"
            if not path.exists():
                clock = time.perf_counter()
                trainer = loop.train(policy, pairs, url, settings, seed=seed, out=options.work / f"seed_{seed}")
                logs = [row for row in trainer.state.log_history if "reward" in row]
                after = loop.answers(trainer.model, processor, test, settings, num=settings.candidates, seed=1)
                trial = {
                    "sampled": float(np.mean(loop.right_share(after, test))),
                    "chosen": float(np.mean(loop.best_of_n(after, test, url)["chosen"])),
                    "reward_std": [row["reward_std"] for row in logs],
                    "kl": [row.get("kl") for row in logs],
                    "seconds": time.perf_counter() - clock,
                }
                write_atomic(path, json.dumps(trial) + "\n")
            trials.append(json.loads(path.read_text()))
            print(seed, {name: trials[-1][name] for name in ("sampled", "chosen", "seconds")}, flush=True)
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "questions": len(test),
        "candidates": settings.candidates,
        "steps": settings.steps,
        "answers_a_step": settings.prompts * settings.group,
        "before": {
            "sampled": over_questions(before),
            "best_of_n": over_questions(best["chosen"]),
            "any_of_n": over_questions(best["any"]),
            "gain": over_questions([a - b for a, b in zip(best["chosen"], before, strict=True)]),
            "seconds": seconds,
        },
        "after": {name: over_seeds([trial[name] for trial in trials]) for name in ("sampled", "chosen")},
        "change": over_seeds([trial["sampled"] - float(np.mean(before)) for trial in trials]),
        "trials": trials,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("before", "after", "change")}, indent=1))


if __name__ == "__main__":
    main()
