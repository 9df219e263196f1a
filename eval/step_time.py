"""Seconds per RL step of every critic-free recipe against TRL's own GRPO step: `python eval/step_time.py`, by hand.

All take the same model, pairs, prompts per batch, group size and completion length, in turns, each in a process of its
own: what one leaves in memory is not the next one's. A step is sampling, scoring and one update. A recipe with a KL term
(a forward pass of the reference more) is compared with TRL's with one, one without with TRL's without. Dynamic sampling
draws more rollouts than it trains on and is left out. Prints the median ratio over the turns and its range, and the ratio
of what training took of memory at its height.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
from rich.console import Console
from rich.table import Table
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rewardlab.config import RLConfig, load_yaml
from rewardlab.data.pairs import read_pairs
from rewardlab.models.checkpoints import commit
from rewardlab.models.families import vision_token_ids
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.rewards.rollout import RewardFunction, Rollout, Trajectory
from rewardlab.training.policy_gradient.build import trl_arguments
from rewardlab.training.rl import build_trainer, judgment_reward_of, rl_rows

ROOT = Path(__file__).parents[1]
BASELINES = {"trl grpo": {"kl": "k3_loss", "kl_coef": 0.04}, "trl grpo, no KL": {"kl": "k3_loss", "kl_coef": 0.0}}
METHOD = ("advantage", "outliers", "preclip", "clip_high", "ratio", "average", "kl", "kl_coef")
SHAPES: dict[str, Any] = {
    "template": "plain",
    "learning_rate": 1e-5,
    "rollout_batch_size": 64,
    "batch_size": 64,
    "micro_batch_size": 64,
    "group_size": 8,
    "max_completion_length": 64,
    "gradient_checkpointing": False,
    "save_steps": 1000,
    "consistency": {"weight": 0.0},
}


class StepTimer(TrainerCallback):
    """Seconds of every optimizer step, from its first rollout until its gradients are there, in ``seconds``."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._start = clock, 0.0
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = self._clock()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(self._clock() - self._start)


class TRLReward:
    """A reward function of ours, as TRL calls its own."""

    __name__ = "trl_reward"

    def __init__(self, reward: RewardFunction) -> None:
        self._reward = reward

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[list[int]],
        trainer_state: Any,
        pair_id: Sequence[str],
        **columns: Any,
    ) -> list[float | None]:
        columns = {"pair_id": pair_id, **{name: columns[name] for name in ("question", "order", "preferred")}}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        rollouts = [
            Rollout(row, [], Trajectory(tokens), turns[0]["content"])
            for row, tokens, turns in zip(rows, completion_ids, completions, strict=True)
        ]
        return self._reward(rollouts, trainer_state.global_step).rewards


def trl_grpo(
    rows: Any,
    config: RLConfig,
    model: Any,
    processor: Any,
    reward: RewardFunction,
    out: Path,
    *,
    make: Callable[..., GRPOTrainer] = GRPOTrainer,
    callbacks: Sequence[TrainerCallback] = (),
) -> GRPOTrainer:
    """Return TRL's trainer as it comes, with the shapes and the reward of ours."""
    ours = trl_arguments(config, out)
    shared = {f.name: getattr(ours, f.name) for f in fields(GRPOConfig) if f.init and f.name in KEPT}
    suppress = {"suppress_tokens": vision_token_ids(model.config)}
    args = GRPOConfig(**shared, loss_type="grpo", beta=config.kl_coef, generation_kwargs=suppress)
    return make(
        model=model,
        reward_funcs=[TRLReward(reward)],
        args=args,
        train_dataset=rows,
        processing_class=processor,
        callbacks=list(callbacks),
    )


KEPT = {
    *("output_dir", "learning_rate", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "max_grad_norm", "seed", "disable_tqdm", "bf16", "use_cpu", "report_to", "save_steps"),
    *("steps_per_generation", "num_generations", "max_completion_length", "temperature", "top_p", "top_k"),
}


def memory_mib(field: str) -> float:
    """Return VmRSS or, since it was last reset, VmHWM of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def measure(name: str, recipe: dict[str, Any], run: Path, steps: int) -> tuple[float, float]:
    """Return (seconds a step, the first left out; MiB that training took at its height) of one short run from the SFT
    checkpoint."""
    pairs = [pair for pair in read_pairs(run / "distill" / "distilled.parquet") if pair.attempts != "1"][:400]
    template, timer = load_template("plain"), StepTimer()
    rows = rl_rows(pairs, template, both_orders=True)
    config = RLConfig(model=str(run / "sft" / "final"), max_steps=steps + 1, **SHAPES, **recipe)
    model, processor = load_model(config.model, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if name in BASELINES:
            reward = judgment_reward_of(config, template, model, out)
            trainer = trl_grpo(rows, config, model, processor, reward, out, callbacks=[timer])
        else:
            trainer = build_trainer(rows, config, model, processor, template, out, callbacks=[timer])
        trainer.remove_callback(PrinterCallback)
        before = memory_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        trainer.train()
        peak = memory_mib("VmHWM")
    return statistics.median(timer.seconds[1:]), peak - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a finished quickstart")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", help="recipes beside TRL's, with commas")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results" / "step_time.json")
    options = parser.parse_args()
    recipes: dict[str, dict[str, Any]] = {name: {"advantage": "grpo", **recipe} for name, recipe in BASELINES.items()}
    for path in sorted((ROOT / "configs" / "rl").glob("*.yaml")):
        of_hardware = path.stem.startswith("stable_reinforce_")
        if not of_hardware and (recipe := load_yaml(path)).get("advantage") != "gae":  # a critic costs what it costs
            recipes[path.stem] = {key: value for key, value in recipe.items() if key in METHOD}
    if options.only:
        recipes = {name: recipe for name, recipe in recipes.items() if name in BASELINES or name in options.only.split(",")}
    times: dict[str, list[float]] = {name: [] for name in recipes}
    peaks: dict[str, list[float]] = {name: [] for name in recipes}
    for turn in range(options.turns):
        for name, recipe in recipes.items():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                step_s, peak = process.submit(measure, name, recipe, options.run, options.steps).result()
            times[name].append(step_s)
            peaks[name].append(peak)
        print(f"turn {turn + 1} of {options.turns}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in times.items()), flush=True)
    table = Table(title=f"seconds per step by TRL's GRPO step, {options.turns} turns")
    for column in ("recipe", "against", "median ratio", "lowest", "highest", "peak memory"):
        table.add_column(column)
    result = {}
    for name, seconds in times.items():
        baseline = "trl grpo" if recipes[name].get("kl_coef") else "trl grpo, no KL"
        ratios = [a / b for a, b in zip(seconds, times[baseline], strict=True)]
        result[name] = {"against": baseline, "median_ratio": statistics.median(ratios), "ratios": ratios, "seconds": seconds}
        result[name]["peak_mib"] = peaks[name]
        result[name]["memory_ratio"] = statistics.median(peaks[name]) / statistics.median(peaks[baseline])
        figures = (statistics.median(ratios), min(ratios), max(ratios), result[name]["memory_ratio"])
        table.add_row(name, baseline, *(f"{value:.2f}" for value in figures))
    Console().print(table)
    options.out.write_text(json.dumps({"commit": commit(), "shapes": SHAPES, "recipes": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
