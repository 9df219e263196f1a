"""Runs of SFT and RL as a test and its torchrun children both make them: on any number of processes, killed where asked."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
import torch
from transformers import TrainerCallback

from rewardlab.config import ConsistencyConfig, RLConfig, SFTConfig
from rewardlab.training import rl as rl_module
from rewardlab.training import sft as sft_module
from rewardlab.training.rl import train_rl
from rewardlab.training.sft import train_sft
from rewardlab.types import PreferencePair, choice_of
from rewardlab.verdicts import format_verdict
from rewardlab.world.pairs import make_pairs

SHARED: dict[str, Any] = {
    "template": "plain",
    "learning_rate": 1e-3,
    "lr_scheduler": "constant",
    "micro_batch_size": 4,
    "save_steps": 2,
    "max_steps": 4,
    "gradient_checkpointing": False,
}


class KilledError(Exception):
    pass


class KillAtFirstSave(TrainerCallback):
    def on_save(self, *args: Any, **kwargs: Any) -> None:
        raise KilledError


def pairs() -> list[PreferencePair]:
    made = make_pairs(32, seed=0, held_out=False)[0]
    said = [format_verdict(choice_of(pair.preferred or 0, pair.order), "x" * (n % 7)) for n, pair in enumerate(made)]
    return [replace(pair, attempts="2", judgment=text) for pair, text in zip(made, said, strict=True)]


def run(stage: str, checkpoint: Path, out: Path, *, kill: bool = False, **changes: Any) -> None:
    """Train ``stage`` into ``out``, or go on with it; ``kill`` ends it right after its first checkpoint."""
    if stage == "sft":
        config: Any = SFTConfig(model=str(checkpoint), **({**SHARED, "batch_size": 8} | changes))
        module, name, train = sft_module, "ResumableSFTTrainer", train_sft
    else:
        own = {"rollout_batch_size": 8, "batch_size": 8, "max_completion_length": 12}
        own |= {"consistency": ConsistencyConfig(weight=0.0)}
        config = RLConfig(model=str(checkpoint), **(SHARED | own | changes))
        module, name, train = rl_module, "build_trainer", train_rl
    original = getattr(module, name)

    def build(*args: Any, **kwargs: Any) -> Any:
        trainer = original(*args, **kwargs)
        if stage != "sft":
            last: list[float] = []

            def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
                last[:] = [float(sum(ids) % 2) for ids in completion_ids]
                return [float(sum(ids) % 5) for ids in completion_ids]

            trainer.reward_funcs, trainer.right_of_last_batch = [reward], lambda: list(last)
            trainer.read_of_last_batch = lambda: [True] * len(last)
        if kill:
            trainer.add_callback(KillAtFirstSave())
        return trainer

    setattr(module, name, build)
    try:
        train(pairs(), config, out)
    except KilledError:
        pass
    finally:
        setattr(module, name, original)


def main(checkpoint: Path, folder: Path, *wanted: str) -> None:
    """``STAGE:NAME`` trains into FOLDER/NAME, ``STAGE:NAME:kill`` begins only."""
    for what in wanted:
        stage, name, *kill = what.split(":")
        run(stage.partition("+")[0], checkpoint, folder / name, kill=bool(kill), **CHANGES.get(stage, {}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed's threads sometimes abort an interpreter that ends by itself


CHANGES: dict[str, dict[str, Any]] = {
    "rl+groups": {"advantage": "grpo", "samples_per_prompt": 2, "dynamic_sampling": "refill"},
    "rl+windows": {"advantage": "gae", "window": 4, "outliers": "keep", "preclip": None},
    "rl+lora": {"lora": {"r": 4}},
    "sft+lora": {"lora": {"r": 4}},
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
