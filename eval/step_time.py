"""How fast is a training step? Every critic-free recipe against TRL's own GRPO step: `python eval/step_time.py`

All take the same model, pairs, prompts per batch, group size and completion length, in turns, each in its own process, so that
none inherits memory. A step is sampling, scoring and one update. A recipe with a KL term (one more forward pass of the
reference) is compared with TRL's step with one, a recipe without with TRL's without. Dynamic sampling is left out: it samples
more rollouts than it trains on. Prints the median ratio over the turns with its range, and the ratio of peak training memory.

`--mixed` takes prompts of four lengths (200 to 1,250 tokens, one image each), micro-batches of eight rollouts and an untrained
model. It measures CPU time on one thread, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch
from rich.console import Console
from rich.table import Table
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rewardlab.config import RLConfig, load_yaml
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
from rewardlab.demo.build import corpus
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.checkpoints import commit
from rewardlab.models.families import vision_token_ids
from rewardlab.models.loading import load_model, load_processor
from rewardlab.prompts import load_template
from rewardlab.rewards.rollout import RewardFunction, Rollout, Trajectory
from rewardlab.training.policy_gradient.build import trl_arguments
from rewardlab.training.rl import build_trainer, judgment_reward_of, rl_rows
from rewardlab.training.run.rows import PromptRows
from rewardlab.types import PreferencePair

ROOT = Path(__file__).parents[1]
BASELINES = {"trl grpo": {"kl": "k3_loss", "kl_coef": 0.04}, "trl grpo, no KL": {"kl_coef": 0.0}}
METHOD = ("advantage", "outliers", "preclip", "clip_high", "objective", "average", "kl", "kl_coef")
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


MIXED: dict[str, Any] = {**SHAPES, "rollout_batch_size": 32, "batch_size": 32, "micro_batch_size": 8}
QUESTION_TOKENS = (150, 400, 800, 1200)  # a prompt has about 50 more


class StepTimer(TrainerCallback):
    """Records the ``seconds`` of every optimizer step, from its first rollout to its gradients."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._start = clock, 0.0
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = self._clock()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(self._clock() - self._start)


class TRLReward:
    """One of our reward functions with the signature of TRL's."""

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
    rows: PromptRows,
    config: RLConfig,
    model: Any,
    processor: Any,
    reward: RewardFunction,
    out: Path,
    *,
    make: Callable[..., GRPOTrainer] = GRPOTrainer,
    callbacks: Sequence[TrainerCallback] = (),
) -> GRPOTrainer:
    """Return TRL's trainer with our shapes and reward."""
    ours = trl_arguments(config, out)
    shared = {f.name: getattr(ours, f.name) for f in fields(GRPOConfig) if f.init and f.name in KEPT}
    suppress = {"suppress_tokens": vision_token_ids(model.config)}
    args = GRPOConfig(**shared, loss_type="grpo", beta=config.kl_coef, generation_kwargs=suppress)
    return make(
        model=model,
        reward_funcs=[TRLReward(reward)],
        args=args,
        train_dataset=rows.whole_dataset(),
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


def save_untrained_model(folder: Path) -> None:
    """Write a small model with random weights; its rollouts have the maximum length."""
    pairs, truths = make_pairs(300, seed=0, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
    save_model(folder, build_model(tokenizer, hidden=64, layers=2, seed=0), build_processor(tokenizer))


def mixed_pairs(tokenizer: Any) -> list[PreferencePair]:
    """Return pairs whose questions cycle through the lengths of :data:`QUESTION_TOKENS`."""
    pairs = make_pairs(400, seed=0, held_out=False)[0]
    words = tokenizer(" ".join(pair.question for pair in pairs))["input_ids"]
    lengths = [QUESTION_TOKENS[n % len(QUESTION_TOKENS)] for n in range(len(pairs))]
    questions = [tokenizer.decode(words[n : n + length]) for n, length in enumerate(lengths)]
    return [replace(pair, question=text, attempts="2") for pair, text in zip(pairs, questions, strict=True)]


def measure(name: str, recipe: dict[str, Any], run: Path, steps: int, mixed: bool) -> tuple[float, float]:
    """Return (seconds per step without the first, peak MiB of training) of a short run from the SFT checkpoint, or from the
    untrained model in ``run``."""
    template, timer = load_template("plain"), StepTimer(time.process_time if mixed else time.perf_counter)
    checkpoint = run if mixed else run / "sft" / "final"
    if mixed:
        torch.set_num_threads(1)  # a thread that waits for another counts as work on the processor's clock
        pairs = mixed_pairs(load_processor(str(run)).tokenizer)
    else:
        pairs = [pair for pair in read_pairs(run / "distill" / "distilled.parquet") if pair.attempts != "1"][:400]
    rows = rl_rows(pairs, template, both_orders=True)
    config = RLConfig(model=str(checkpoint), max_steps=steps + 1, **(MIXED if mixed else SHAPES), **recipe)
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
    parser.add_argument("--mixed", action="store_true", help="prompts of four lengths")
    parser.add_argument("--out", type=Path, help="default: eval/results/step_time.json, or step_time_mixed.json")
    options = parser.parse_args()
    out = options.out or ROOT / "eval" / "results" / f"step_time{'_mixed' if options.mixed else ''}.json"
    with tempfile.TemporaryDirectory() as folder:
        run = options.run
        if options.mixed:
            run = Path(folder)
            save_untrained_model(run)
        result = compare(options, run)
    shapes = MIXED if options.mixed else SHAPES
    out.write_text(json.dumps({"commit": commit(), "shapes": shapes, "recipes": result}, indent=1) + "\n")


def compare(options: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Time all recipes in turns, print the table, and return its values by recipe."""
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
                step_s, peak = process.submit(measure, name, recipe, run, options.steps, options.mixed).result()
            times[name].append(step_s)
            peaks[name].append(peak)
        print(f"turn {turn + 1} of {options.turns}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in times.items()), flush=True)
    table = Table(title=f"seconds per step by TRL's GRPO step, {options.turns} turns")
    for column in ("recipe", "against", "median ratio", "lowest", "highest", "peak memory"):
        table.add_column(column)
    result: dict[str, Any] = {}
    for name, seconds in times.items():
        baseline = "trl grpo" if recipes[name].get("kl_coef") else "trl grpo, no KL"
        ratios = [a / b for a, b in zip(seconds, times[baseline], strict=True)]
        result[name] = {"against": baseline, "median_ratio": statistics.median(ratios), "ratios": ratios, "seconds": seconds}
        result[name]["peak_mib"] = peaks[name]
        result[name]["memory_ratio"] = statistics.median(peaks[name]) / statistics.median(peaks[baseline])
        figures = (statistics.median(ratios), min(ratios), max(ratios), result[name]["memory_ratio"])
        table.add_row(name, baseline, *(f"{value:.2f}" for value in figures))
    Console().print(table)
    return result


if __name__ == "__main__":
    main()
