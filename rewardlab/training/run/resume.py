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
from safetensors import SafetensorError
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

from rewardlab.config import MethodConfig, TrainConfig
from rewardlab.errors import CheckpointError, DataError, HealthError, MediaError, OutputError, RewardlabError
from rewardlab.models.loading import read_model
from rewardlab.models.value_model import LikelihoodModel, RankingModel, ValueModel
from rewardlab.processes import is_main, num_processes
from rewardlab.training.run.parallel import is_lost_peer
from rewardlab.training.run.watchdog import HalveLearningRate, Watchdog, rollbacks

_DISK_FULL = ("inline_container.cc", "PytorchStreamWriter failed", "iostream error")  # torch.save's words for a failed write
_JOINED = "latest_universal"  # DeepSpeed's name for what says which folder holds the joined state; written last


def run_steps(trainer: Any, config: TrainConfig, out: Path, resume: str | None) -> None:
    """Train under the watchdog, from checkpoint ``resume`` if given. Raise DataError if the data make no step, HealthError if
    the run goes wrong, RewardlabError if another of its processes has ended."""
    if resume:
        fit_to_processes(trainer, Path(resume))
    is_fit = getattr(trainer, "value_only", False)  # of a critic alone, which begins at 0
    bootstraps, limits = getattr(config, "bootstraps", False), getattr(config, "signs", None)
    trainer.add_callback(
        Watchdog(config.health, out) if is_fit else Watchdog(config.health, out, bootstraps=bootstraps, limits=limits)
    )
    if times := len(rollbacks(out)):
        with_critic = isinstance(config, MethodConfig) and config.estimator.critic
        rates = [config.learning_rate, *([trainer.value_learning_rate] if with_critic else [])]
        trainer.add_callback(HalveLearningRate(times, max(rates)))
    trainer.remove_callback(PrinterCallback)  # every record is in metrics.jsonl; the terminal has the bar
    try:
        trainer.train(resume_from_checkpoint=resume)
    except HealthError:
        release(trainer)  # another attempt may follow
        raise
    except (DataError, MediaError) as error:  # of a worker process it holds the worker's whole traceback
        name = type(error).__name__
        raise type(error)(str(error).strip().rsplit(f"{name}: ", 1)[-1]) from error
    except RuntimeError as error:
        if is_lost_peer(error):
            raise RewardlabError(
                f"{out}: another process of this run has died; the end of its output says why, or the machine's "
                "log if it was killed, for example when out of memory. The same command resumes from the last checkpoint"
            ) from error
        if any(name in str(error) for name in _DISK_FULL):
            raise _unwritten(out, error) from error
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        reason = str(error).splitlines()[0]
        raise DataError(
            f"a data-loading process was killed ({reason}); give the machine, or its container, more memory, "
            "or lower data_workers; the same command resumes the run"
        ) from error
    except SafetensorError as error:  # no OSError, whatever the disk said
        raise _unwritten(out, error) from error
    if trainer.state.global_step == 0:
        raise DataError("the data are too few for one optimizer step; add pairs, or lower the batch sizes")


def _unwritten(out: Path, error: Exception) -> OutputError:
    reason = str(error).splitlines()[0]
    return OutputError(f"{out}: a checkpoint cannot be written ({reason}); free some space and run it again")


def release(trainer: Any) -> None:
    """Free what DeepSpeed's engine holds on the devices. (Under ZeRO-3 this process's bfloat16 weights stay, 2 of 16 bytes.)"""
    if trainer.is_deepspeed_enabled and trainer.deepspeed is not None:
        trainer.deepspeed.destroy()


def fit_to_processes(trainer: Any, checkpoint: Path) -> None:
    """Make ``trainer`` load DeepSpeed's state from ``checkpoint`` on the current number of processes: the main process joins
    the shards of another number beside them, which takes as much disk again. Raise CheckpointError without DeepSpeed's state,
    and if joining fails.
    """
    if not trainer.is_deepspeed_enabled:
        if any(checkpoint.glob("global_step*")):
            raise CheckpointError(f"{checkpoint}: was saved by DeepSpeed; resume with the same launcher configuration")
        return
    steps = [path for path in checkpoint.glob("global_step*") if not path.name.endswith("_universal")]
    if not steps:
        raise CheckpointError(f"{checkpoint}: has no DeepSpeed state; resume without DeepSpeed, as the run was started")
    if len(list(steps[0].glob("*optim_states.pt"))) == num_processes():
        return
    if is_main() and not (checkpoint / _JOINED).exists():
        _join(steps[0], steps[0].with_name(f"{steps[0].name}_universal"))
    while not (checkpoint / _JOINED).exists():
        time.sleep(0.5)
    plugin = trainer.accelerator.state.deepspeed_plugin
    plugin.deepspeed_config["checkpoint"] = {"load_universal": True}
    trainer.add_callback(SeparateAdamSteps())


class StrictResumeMixin:
    """Mixed into a Trainer: resuming loads every weight, or fails. transformers saves Qwen-VL weights under hub names and loads
    checkpoints by module names, not strictly: the run would silently resume from the initial weights."""

    kept_elsewhere: tuple[str, ...] = ()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: TRL's says of every run that it fine-tuned "None" with GRPO. ``run.json`` says what it was."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        model = model or self.model  # type: ignore[attr-defined]
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled  # type: ignore[attr-defined]
        if sharded or not isinstance(model, PreTrainedModel):  # adapters and shards have loaders of their own
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        self.load_weights(model, resume_from_checkpoint)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing if a run was killed between its last step, or early end, and its final folder: Trainer would take another
        step."""
        if self.state.global_step >= self.state.max_steps or self.control.should_training_stop:  # type: ignore[attr-defined]
            self.control.should_training_stop = True  # type: ignore[attr-defined]
        else:
            super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def load_weights(self, model: Any, checkpoint: str) -> None:
        """Load every weight of ``checkpoint`` into ``model``, except ``kept_elsewhere``. Raise CheckpointError if one fails."""
        saved = read_model(checkpoint, type(model), dtype=model.dtype)
        missing, unexpected = model.load_state_dict(saved.state_dict(), strict=False)
        if strangers := [name for name in missing if not name.startswith(self.kept_elsewhere)] + list(unexpected):
            raise CheckpointError(f"{checkpoint}: its weights do not fit the model; these have no counterpart: {strangers[:5]}")


class ValueModelMixin:
    """Mixed into a Trainer of a model of ``models/value_model.py``: saved as its folder, read back whole;
    DeepSpeed's and FSDP's shards have their own loaders."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if self.args.should_save:  # type: ignore[attr-defined]
            model: ValueModel | LikelihoodModel | RankingModel = self.accelerator.unwrap_model(self.model)  # type: ignore[attr-defined]
            model.save(Path(output_dir or self.args.output_dir), state_dict)  # type: ignore[attr-defined]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:  # type: ignore[attr-defined]
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        mine = self.accelerator.unwrap_model(model or self.model)  # type: ignore[attr-defined]
        saved = type(mine).from_pretrained(resume_from_checkpoint)
        mine.load_state_dict(saved.state_dict())


class SeparateAdamSteps(TrainerCallback):
    """Give each part of the optimizer its own step counter: in joined ZeRO-3 state they share one, and Adam's bias correction
    would be that of several steps."""

    def on_train_begin(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)
        while hasattr(inner, "optimizer"):
            inner = inner.optimizer
        for state in inner.state.values():
            if torch.is_tensor(state.get("step")):
                state["step"] = state["step"].clone()


def _join(shards: Path, joined: Path) -> None:
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    result = subprocess.run(
        [*command, "--input_folder", str(shards), "--output_folder", str(joined)], capture_output=True, text=True
    )
    if result.returncode:
        raise CheckpointError(f"{shards}: its shards cannot be joined ({result.stderr.strip()[-500:]})")
