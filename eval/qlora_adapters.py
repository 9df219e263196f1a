"""How far the adapters of the QLoRA config move, beside the same above float32 weights: `python eval/qlora_adapters.py`.

Rate, schedule, adapters and frozen parts are those of configs/rl/stable_reinforce_qlora_24gb.yaml, in SFT and in RL, on a small
model with random weights and real NF4 (bitsandbytes). RL is paid for tokens of even numbers. Beside what is shipped stands what
TRL makes of it by itself, adapters in bfloat16. Prints the mean move of the numbers of all lora_A and all lora_B, its ratio to
the run in float32, and the share of numbers that never moved.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch
from transformers import PrinterCallback
from trl import SFTConfig as TRLSFTConfig

from rewardlab.config import RLConfig, SFTConfig, load_yaml
from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
from rewardlab.demo.build import corpus
from rewardlab.demo.judgments import grounded_judgment
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.checkpoints import commit
from rewardlab.models.loading import load_policy, peft_config
from rewardlab.prompts import load_template
from rewardlab.rewards.rollout import Rollout, Scored
from rewardlab.training.rl import build_trainer, rl_rows
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import ResumableSFTTrainer, sft_dialogues
from rewardlab.types import PreferencePair

ROOT = Path(__file__).parents[1]
SHIPPED = load_yaml(ROOT / "configs" / "rl" / "stable_reinforce_qlora_24gb.yaml")
PLAIN = load_template("plain")
SHAPES: dict[str, Any] = {"template": "plain", "batch_size": 2, "micro_batch_size": 2, "gradient_checkpointing": False}
ROLLOUTS: dict[str, Any] = {"rollout_batch_size": 2, "max_completion_length": 16, "consistency": {"weight": 0}}


class EvenTokens:
    """Pays the share of a rollout's tokens whose number is even."""

    __name__ = "even_tokens"

    def __call__(self, rollouts: Sequence[Rollout], step: int) -> Scored:
        shares = [sum(token % 2 == 0 for token in rollout.token_ids) / len(rollout.token_ids) for rollout in rollouts]
        return Scored(rewards=list(shares), correct=[1.0] * len(shares), parsed=[True] * len(shares))


def build_base(folder: Path, width: int) -> tuple[Path, list[PreferencePair]]:
    """Write a model with random weights; return its folder, and pairs with judgments."""
    pairs, truths = make_pairs(200, seed=0, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
    save_model(folder, build_model(tokenizer, hidden=width, layers=2, seed=0), build_processor(tokenizer))
    rows = zip(pairs, truths, strict=True)
    return folder, [replace(p, judgment=grounded_judgment(t, p.shown(p.order))[0], attempts="2") for p, t in rows]


def build(stage: str, base: Path, pairs: Sequence[PreferencePair], *, quantize: str | None, steps: int, out: Path) -> Any:
    """Return the trainer of a stage, as the stage itself builds it."""
    changes = {name: SHIPPED[name] for name in ("freeze", "learning_rate")} | {"max_steps": steps, "save_steps": steps}
    changes |= {"lora": {**SHIPPED["lora"], "quantize": quantize}}
    if stage == "rl":
        config = RLConfig(model=str(base), **SHAPES, **ROLLOUTS, **changes)
        rows = rl_rows(pairs, PLAIN, both_orders=True)
        return build_trainer(rows, config, *load_policy(config, out), PLAIN, out, reward=EvenTokens())
    sft = SFTConfig(model=str(base), **SHAPES, **changes)
    model, processor = load_policy(sft, out)
    processor.tokenizer.padding_side = "right"
    return ResumableSFTTrainer(
        model=model.train(),
        args=TRLSFTConfig(max_length=None, **common_arguments(sft, out)),
        train_dataset=dialogue_dataset(PromptReader(pairs, PLAIN), sft_dialogues(pairs, PLAIN)),
        processing_class=processor,
        peft_config=peft_config(sft.lora, model, sft.freeze),
    )


def moves(stage: str, base: Path, pairs: Sequence[PreferencePair], *, quantize: str | None, steps: int, cast: bool) -> Any:
    """Train; return {lora_A, lora_B: (type, mean move, share that never moved)}. Without ``cast`` adapters stay as TRL has
    them."""
    module = "rewardlab.training.sft" if stage == "sft" else "rewardlab.training.policy_gradient.trainer"
    uncast = nullcontext() if cast else patch(f"{module}.adapters_to_float32", lambda model: None)
    with tempfile.TemporaryDirectory() as folder, uncast:
        trainer = build(stage, base, pairs, quantize=quantize, steps=steps, out=Path(folder))
        trainer.remove_callback(PrinterCallback)
        weights = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
        before = {name: weight.detach().float().clone() for name, weight in weights.items()}
        trainer.train()
    found = {}
    for side in ("lora_A", "lora_B"):
        names = [name for name in weights if side in name]
        move = torch.cat([(weights[name].detach().float() - before[name]).abs().flatten() for name in names])
        dtype = str(weights[names[0]].dtype).removeprefix("torch.")
        found[side] = (dtype, move.mean().item(), (move == 0).float().mean().item())
    return found


RUNS = {
    "float32 weights below": {"quantize": None, "cast": True},
    "nf4, as TRL casts": {"quantize": "nf4", "cast": False},
    "nf4, as shipped": {"quantize": "nf4", "cast": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=32, help="of the model's layers, a multiple of 32")
    parser.add_argument("--stages", default="sft,rl")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results" / "qlora_adapters.md")
    options = parser.parse_args()
    rate, command = SHIPPED["learning_rate"], " ".join(["python", "eval/qlora_adapters.py", *sys.argv[1:]])
    lines = [f"# QLoRA's adapters beside float32 ones: {options.steps:,} steps at {rate:g}, width {options.width}", ""]
    lines += [f"`{command}`, commit {commit()}", ""]
    lines += ["| stage | weights below the adapter | | type | mean move | ratio to float32 | never moved |"]
    lines += ["|---|---|---|---|---|---|---|"]
    pool = ProcessPoolExecutor(len(RUNS), multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory() as folder, pool:
        base, pairs = build_base(Path(folder) / "base", options.width)
        for stage in options.stages.split(","):
            begun = {name: pool.submit(moves, stage, base, pairs, steps=options.steps, **run) for name, run in RUNS.items()}
            found = {name: future.result() for name, future in begun.items()}
            exact = found["float32 weights below"]
            for name, sides in found.items():
                for side, (dtype, move, still) in sides.items():
                    ratio = move / exact[side][1]
                    lines.append(f"| {stage} | {name} | {side} | {dtype} | {move:.2e} | {ratio:.3f} | {still:.1%} |")
                    print(json.dumps([stage, name, side, dtype, move, ratio, still]), flush=True)
            options.out.write_text("\n".join([*lines, ""]), encoding="utf-8")
            print(f"written: {options.out}")


if __name__ == "__main__":
    main()
