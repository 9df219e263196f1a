"""From a checkpoint on, or from the start: training, on as many processes as there are now.

DeepSpeed's shards are joined and dealt out anew where other numbers of processes have left them; without DeepSpeed every
process has all of the state, and nothing need be done.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from rewardlab.config import TrainConfig
from rewardlab.errors import CheckpointError, DataError, HealthError
from rewardlab.processes import is_main, num_processes
from rewardlab.training.run.watchdog import Gentler, Watchdog, rollbacks

_WHOLE = "latest_universal"  # DeepSpeed's name for what says which folder holds the joined state; written last


def run_steps(trainer: Any, config: TrainConfig, out: Path, resume: str | None) -> None:
    """Train, watched, from checkpoint ``resume`` on where there is one. Raises DataError where the data make not one step,
    HealthError where the run goes wrong."""
    if resume:
        fit_to_processes(trainer, Path(resume))
    trainer.add_callback(Watchdog(config.health, out))
    if times := len(rollbacks(out)):
        with_critic = getattr(config, "advantage", "") == "gae"
        rates = [config.learning_rate, *([trainer.args.value_learning_rate] if with_critic else [])]
        trainer.add_callback(Gentler(times, max(rates)))
    trainer.remove_callback(PrinterCallback)  # every record is in metrics.jsonl; the terminal has the bar
    try:
        trainer.train(resume_from_checkpoint=resume)
    except HealthError:
        release(trainer)  # another attempt may follow
        raise
    if trainer.state.global_step == 0:
        raise DataError("the data are too few for one optimizer step; add pairs, or lower the batch sizes")


def release(trainer: Any) -> None:
    """Let go of what DeepSpeed's engine holds on the devices: it is not collected with its trainer. (Under ZeRO-3 this
    process's share of the weights in bfloat16 stays, 2 of 16 bytes.)"""
    if trainer.is_deepspeed_enabled and trainer.deepspeed is not None:
        trainer.deepspeed.destroy()


def fit_to_processes(trainer: Any, checkpoint: Path) -> None:
    """Have ``trainer`` load DeepSpeed's state from ``checkpoint`` on as many processes as there are now.

    The main process joins shards that other numbers of processes have left, beside them, which takes as much disk again. Raises
    CheckpointError for a checkpoint without DeepSpeed's state, and where the joining fails.
    """
    if not trainer.is_deepspeed_enabled:
        if any(checkpoint.glob("global_step*")):
            raise CheckpointError(f"{checkpoint}: was saved by DeepSpeed; resume with the launcher's configuration it had")
        return
    steps = [path for path in checkpoint.glob("global_step*") if not path.name.endswith("_universal")]
    if not steps:
        raise CheckpointError(f"{checkpoint}: has no state of DeepSpeed; resume without it, as the run was begun")
    if len(list(steps[0].glob("*optim_states.pt"))) == num_processes():
        return
    if is_main() and not (checkpoint / _WHOLE).exists():
        _join(steps[0], steps[0].with_name(f"{steps[0].name}_universal"))
    while not (checkpoint / _WHOLE).exists():
        time.sleep(0.5)
    plugin = trainer.accelerator.state.deepspeed_plugin
    plugin.deepspeed_config["checkpoint"] = {"load_universal": True}
    trainer.add_callback(StepsOfTheirOwn())


class StepsOfTheirOwn(TrainerCallback):
    """Joined state that ZeRO-3 has read has one counter of steps for all parts of the optimizer, which each part then moves on:
    Adam's bias correction would be that of several steps."""

    def on_train_begin(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)
        while hasattr(inner, "optimizer"):
            inner = inner.optimizer
        for state in inner.state.values():
            if torch.is_tensor(state.get("step")):
                state["step"] = state["step"].clone()


def _join(shards: Path, whole: Path) -> None:
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    done = subprocess.run(
        [*command, "--input_folder", str(shards), "--output_folder", str(whole)], capture_output=True, text=True
    )
    if done.returncode:
        raise CheckpointError(f"{shards}: its shards cannot be joined ({done.stderr.strip()[-500:]})")
