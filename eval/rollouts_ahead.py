"""What do rollouts gain that are drawn ahead of training, and what do they cost? `python -m eval.rollouts_ahead`, by hand.

`rewardlab rl` from the quickstart's SFT judge, its rollouts from a server of its own (`engine.kind: serve`): drawn when they
are needed, or one or two batches ahead (`engine.ahead`). REWARDLAB_VLLM names the server's program (`--program`: in words).
Trainer and server have a thread each, and need a core each. Then the split of a step that the doctor estimates at real sizes,
and what would be gained there. Results: eval/results/rollouts_ahead.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from eval.hardening import cell_of
from eval.scripts import keep_settings, run_script
from eval.studies.summary import t_interval
from eval.studies.trials import digest
from rewardlab.config import EngineConfig, RLConfig, find_config, load_config
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.health.cards import TYPICAL
from rewardlab.health.decoding import decoding_load, decoding_time
from rewardlab.health.plan import Plan, plan_setup
from rewardlab.models.checkpoints import commit
from rewardlab.samplers.vllm_server import find_vllm
from rewardlab.training.run.folder import FINAL, METRICS, is_finished
from rewardlab.training.run.parallel import Launch

ROOT = Path(__file__).parents[1]
REAL = {
    "rl/stable_reinforce_qwen2_5_vl_3b": "Qwen/Qwen2.5-VL-3B-Instruct",
    "rl/stable_reinforce_qwen2_5_vl_7b": "Qwen/Qwen2.5-VL-7B-Instruct",
    "rl/stable_reinforce_qwen3_vl_8b": "Qwen/Qwen3-VL-8B-Instruct",
}
MEASURED = {  # of metrics.jsonl
    "rollouts/staleness": "optimizer steps by which a batch's weights are older",
    "rollouts/wait_seconds": "seconds that training waited for a batch",
    "importance/gap": "distance of the sampler's log-probs from the trainer's, nats",
    "importance/capped_frac": "tokens at the importance cap",
}
Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """``args`` are the server's; ``warm_up`` steps, with the server's start among them, are not timed."""

    steps: int = 54
    importance_cap: float = 2.0
    warm_up: int = 4
    args: str = ""
    max_tokens: int = 64


def batch_times(drawing_s: Sequence[float], training_s: float, ahead: int) -> list[float]:
    """Return when training on each rollout batch ends, in seconds: two machines, one that draws and one that trains.

    The drawing of a batch begins when the machine is free and the weights are there that are ``ahead`` batches old.
    """
    drawn, trained = 0.0, list[float]()
    for n, duration in enumerate(drawing_s):
        weights = trained[n - ahead - 1] if n > ahead else 0.0
        drawn = max(drawn, weights) + duration
        trained.append(max(drawn, trained[-1] if trained else 0.0) + training_s)
    return trained


def simulate(drawing_s: float, training_s: float, *, spread: float, batches: int = 400, seed: int = 0) -> list[float]:
    """Return how many times as fast a run is that draws 0, 1 and 2 batches ahead as one that draws none; drawing takes times
    that are spread log-normally about their mean."""
    dice = np.random.default_rng(seed)
    times = drawing_s * dice.lognormal(-(spread**2) / 2, spread, batches)
    ends = [batch_times(times.tolist(), training_s, ahead)[-1] for ahead in (0, 1, 2)]
    return [ends[0] / end for end in ends]


def real_sizes(spread: float) -> list[Record]:
    """Return the doctor's split of a rollout batch at real sizes: half of eight cards train, half draw."""
    rows = []
    for name, model in REAL.items():
        config = load_config(RLConfig, find_config(name), {})
        config = config.model_copy(update={"engine": EngineConfig(kind="serve", devices="4,5,6,7"), "importance_cap": 2.0})
        setup = plan_setup(config, Plan(launch=Launch(4, 3), card=TYPICAL, model=model))
        assert setup is not None
        load = decoding_load(setup, TYPICAL)
        assert load is not None
        split = decoding_time(load)
        gains = simulate(split.engine_s, split.training_s, spread=spread)
        together = (split.engine_s + split.training_s) / 2  # of eight cards, by assumption
        rows.append(
            {
                "config": name,
                "drawing_s": split.engine_s,
                "training_s": split.training_s,
                "gains": gains,
                "over_shared_cards": together * gains[1] / (split.engine_s + split.training_s),
            }
        )
    return rows


def train(run: Path, out: Path, settings: Settings, ahead: int, seed: int) -> None:
    """Train a judge, or go on with it."""
    if is_finished(out):
        return
    keys = {
        "max_steps": settings.steps,
        "seed": seed,
        "consistency.weight": 0,
        "importance_cap": settings.importance_cap,
        "engine.kind": "serve",
        "engine.ahead": ahead,
        **({"engine.args": settings.args} if settings.args else {}),
    }
    words = ["rl", "--data", run / "distill" / "distilled.parquet", "--config", ROOT / "configs" / "tiny" / "rl.yaml"]
    words += ["--model", run / "sft" / FINAL, "--out", out, *(f"{name}={value}" for name, value in keys.items())]
    command(*words)


def command(*words: Any) -> None:
    line = [str(word) for word in words]
    print("rewardlab", *line, flush=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "rewardlab.cli", *line], check=True, stdout=subprocess.DEVNULL, env=env)


def examine(run: Path, out: Path, settings: Settings) -> Record:
    """Return accuracy on held-out pairs, and what the run logged of its rollouts."""
    report = out / "bench" / "report.json"
    if not report.exists():
        asked = ["--data", run / "demo" / "test.parquet", "--judge", f"hf:{out / FINAL}", "--max-tokens", settings.max_tokens]
        command("bench", "run", "pairs", *asked, "--votes", 1, "--temperature", 0, "--out", report.parent)
    rows = read_complete_lines(out / METRICS)
    times = [row["step_time"] for row in rows if "step_time" in row and row["step"] > settings.warm_up]
    means = {name: [row[name] for row in rows if row.get(name) is not None] for name in MEASURED}
    return {
        "accuracy": json.loads(report.read_text(encoding="utf-8"))["accuracy"]["micro"],
        "step_s": fmean(times),
        **{name: fmean(values) if values else 0.0 for name, values in means.items()},
    }


def markdown(summary: Record) -> str:
    """Return the tables of a summary."""
    seeds, settings = summary["seeds"], summary["settings"]
    ahead = list(next(iter(seeds.values())))
    first = [seeds[seed][ahead[0]]["accuracy"] for seed in seeds]
    rows = [
        "# What do rollouts gain that are drawn ahead of training, and what do they cost?",
        "",
        f"- `python -m eval.rollouts_ahead`, commit {summary['commit']}; seeds {', '.join(seeds)}; {settings['steps']} steps",
        f"  of StableReinforce from the quickstart's SFT judge, importance_cap {settings['importance_cap']:g}.",
        f"- Rollouts come from a process of its own: {summary['program']}. Trainer and server have a thread and a core each.",
        "- Means over seeds, with Student's 95 % intervals; times are ratios to the same seed's run that draws none ahead.",
        "",
        f"| `engine.ahead` | {' | '.join(ahead)} |",
        "|" + "---|" * (len(ahead) + 1),
        f"| right on held-out pairs, % | {' | '.join(cell_of([seeds[s][a]['accuracy'] for s in seeds]) for a in ahead)} |",
    ]
    differences = []
    for a in ahead:
        points = [100 * (seeds[s][a]["accuracy"] - base) for s, base in zip(seeds, first, strict=True)]
        interval = t_interval(points)
        span = f" [{interval[0]:+.1f}, {interval[1]:+.1f}]" if interval else ""
        differences.append("–" if a == ahead[0] else f"{fmean(points):+.1f}{span}")
    rows.append(f"| points over none ahead, seed by seed | {' | '.join(differences)} |")
    times = []
    for a in ahead:
        ratios = [seeds[s][ahead[0]]["step_s"] / seeds[s][a]["step_s"] for s in seeds]
        times.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    rows.append(f"| times as fast, median (least to most) | {' | '.join(times)} |")
    for name, words in MEASURED.items():
        rows.append(f"| {words} | {' | '.join(f'{fmean([seeds[s][a][name] for s in seeds]):.3f}' for a in ahead)} |")
    rows += [
        "",
        f"At real sizes nothing was measured. The doctor's estimate of a rollout batch on eight cards ({TYPICAL.name}),",
        "four that train and four that draw, simulated: times of drawing are spread by",
        f"{100 * summary['spread']:.0f} %. The last column compares with eight that first draw and then train,",
        "if those are twice as fast:",
        "",
        "| config | drawing, s | training, s | one ahead, times as fast | two ahead | one ahead, over eight that do both |",
        "|---|---|---|---|---|---|",
    ]
    for row in summary["real"]:
        gains = f"{row['gains'][1]:.2f} | {row['gains'][2]:.2f} | {row['over_shared_cards']:.2f}"
        rows.append(f"| `{row['config']}` | {row['drawing_s']:.0f} | {row['training_s']:.0f} | {gains} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a quickstart")
    parser.add_argument("--out", type=Path, default=Path("runs/rollouts_ahead"))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--ahead", default="0,1,2", help="batches, comma-separated; others are compared with the first")
    parser.add_argument("--spread", type=float, default=0.2, help="of the times of drawing, in the simulation")
    parser.add_argument("--program", default="vLLM", help="what REWARDLAB_VLLM names, in words")
    parser.add_argument("--set", default="{}", help="other settings, JSON")
    parser.add_argument("--results", type=Path, default=ROOT / "eval" / "results")
    options = parser.parse_args()
    find_vllm()
    settings, ahead = Settings(**json.loads(options.set)), options.ahead.split(",")
    keep_settings(options.out, {**asdict(settings), "judge": digest(options.run / "sft" / FINAL / "model.safetensors")})
    seeds: dict[str, Record] = {}
    for seed in options.seeds.split(","):
        seeds[seed] = {}
        for a in ahead:
            out = options.out / f"seed_{seed}" / f"ahead_{a}"
            train(options.run, out, settings, int(a), int(seed))
            seeds[seed][a] = examine(options.run, out, settings)
            print(seed, a, seeds[seed][a], flush=True)
    facts = {"commit": commit(), "settings": asdict(settings), "program": options.program, "spread": options.spread}
    summary = {**facts, "seeds": seeds, "real": real_sizes(options.spread)}
    write_atomic(options.results / "rollouts_ahead.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(options.results / "rollouts_ahead.md", markdown(summary))


if __name__ == "__main__":
    run_script(main)
