"""A training run's folder: resolved config, metrics, checkpoints, and at the end ``final/``, complete or absent.

Resuming needs the same settings, except those that do not decide what the run computes.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from rewardlab.config import TrainConfig
from rewardlab.data.files import lock_folder, read_complete_lines, write_atomic
from rewardlab.data.pair_table import PairTable
from rewardlab.errors import ConfigError
from rewardlab.models import precision
from rewardlab.models.checkpoints import CARD, commit, versions, write_card
from rewardlab.models.model_card import write_model_card
from rewardlab.processes import command_line, is_main, num_cores, num_processes
from rewardlab.prompts import Template
from rewardlab.reporting.progress import Advance, log_line
from rewardlab.rewards.policy_function import ANCHORS
from rewardlab.types import PreferencePair

FINAL, METRICS, SAMPLES, CONFIG, CRITIC = "final", "metrics.jsonl", "samples.jsonl", "run.json", "critic"
HEALTH = "health.jsonl"  # of the watchdog
VALUE, FIT = "value", "fit.json"  # the run within a run that fits a critic first, and what that took
PROJECT = "rewardlab"  # as trackers name it
EVALUATIONS, EVAL, TRACKED_EVAL = "evaluations.jsonl", "eval/", "eval_"  # trackers know evaluations by transformers' prefix


SHARED_MEMORY, MIN_SHARED_MEMORY = "/dev/shm", 1 << 30  # where worker processes leave samples


def is_finished(out: Path) -> bool:
    return (out / FINAL / CARD).exists()


def refuse_finished(out: Path) -> None:
    """Raise ConfigError for the folder of a finished run: it is never overwritten."""
    if is_finished(out):
        raise ConfigError(f"{out}: holds a finished run; choose another --out, or delete it to train again")


def has_begun(out: Path) -> bool:
    """Return whether ``out`` holds what a run with other settings would lose: a logged optimizer step, the critic's too, or a
    checkpoint."""
    folders = (out, out / VALUE)
    return any(
        any(folder.glob("checkpoint-*")) or any(row["step"] > 0 for row in read_complete_lines(folder / METRICS))
        for folder in folders
    )


def open_run(out: Path, config: BaseModel, *, data: str) -> str | None:
    """Create run folder ``out`` or continue the interrupted run in it; return the checkpoint to resume from, if any. Settings
    that do not decide what a run computes may change: they are logged and stored in ``run.json``. Raise ConfigError for a
    finished run and for one with other settings or data, OutputError if ``out`` cannot be written or another process trains in
    it.
    """
    described: dict[str, Any] = {"config": config.model_dump(mode="json"), "data": data}
    refuse_finished(out)
    if is_main():
        lock_folder(out)
    path = out / CONFIG
    before = _read_config(path) if path.exists() else None
    changes = changed_settings(before["config"], described["config"]) if before else {}
    other = [key for key, values in changes.items() if decides(key, *values)] + (
        ["data"] if before and before["data"] != data else []
    )
    if before and has_begun(out):
        if other:
            raise ConfigError(
                f"{out}: holds an interrupted run with other settings or data ({', '.join(other)}); use another --out, or "
                "the same settings"
            )
        if changes and is_main():
            write_atomic(path, json.dumps({**before, **described}, indent=1) + "\n")
            log_line(f"{out}: {text_of_changes(changes)}")
        return _last_checkpoint(out)
    if is_main():  # the others may look before or after: a run that has just begun has no checkpoint
        if other:
            _forget_start(out)
        else:
            _tidy(out, None)
        write_atomic(path, json.dumps({**described, "versions": versions(), "commit": commit()}, indent=1) + "\n")
    return None


def record_data_files(out: Path, pairs: Sequence[PreferencePair]) -> None:
    """Write into ``run.json`` where the file of these pairs and its media folder are; pairs in memory have none."""
    if not is_main() or not isinstance(pairs, PairTable):
        return
    path = out / CONFIG
    files = {"path": str(pairs.path.resolve()), "images": str(pairs.images.resolve()) if pairs.images else None}
    record = json.loads(path.read_text(encoding="utf-8"))
    write_atomic(path, json.dumps({**record, "data_files": files}, indent=1) + "\n")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        stored = None
    if not isinstance(stored, dict) or not isinstance(stored.get("config"), dict) or "data" not in stored:
        raise ConfigError(f"{path}: does not belong to a training run; use another --out, or remove the file")
    return stored


def _forget_start(out: Path) -> None:
    """Remove what a run with other settings, which failed before its first step, has logged or made at its start."""
    for name in (METRICS, EVALUATIONS, SAMPLES, HEALTH, ANCHORS):
        (out / name).unlink(missing_ok=True)


def _is_complete(checkpoint: Path) -> bool:
    """Whether saving got to its end: the trainer's state is written last."""
    try:
        return bool(json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def _last_checkpoint(out: Path) -> str | None:
    """Return the newest complete checkpoint, if any. The main process removes incomplete ones, and logs after it, which the
    resumed run writes again."""
    whole = [path for path in out.glob("checkpoint-*") if _is_complete(path)]
    last = max(whole, key=_step_of, default=None)
    if is_main():
        _tidy(out, last)
        log_line(f"{out}: resumes from {last.name}" if last else f"{out}: starts anew, because there is no checkpoint yet")
    return None if last is None else str(last)


def last_checkpoints(out: Path, count: int) -> list[Path]:
    """Return the ``count`` newest complete checkpoints of a run, oldest first. Raise ConfigError if there are fewer."""
    complete = sorted((path for path in out.glob("checkpoint-*") if _is_complete(path)), key=_step_of)
    if len(complete) < count:
        raise ConfigError(
            f"{out}: has {len(complete)} complete checkpoints (checkpoint-N), fewer than {count}: a run keeps "
            "`save_total_limit` of them, one every `save_steps`"
        )
    return complete[-count:]


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1])


def _tidy(out: Path, last: Path | None) -> None:
    for path in out.glob("checkpoint-*"):
        if not _is_complete(path):
            shutil.rmtree(path)
    step = 0 if last is None else _step_of(last)
    for name in (METRICS, EVALUATIONS, SAMPLES):
        path = out / name
        if path.exists():
            whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
            last_kept = step - (name == SAMPLES)  # samples of step s are drawn after checkpoint s was saved
            kept = [line for line in whole.split("\n") if line and json.loads(line)["step"] <= last_kept]
            write_atomic(path, "".join(f"{line}\n" for line in kept))


def write_partial(
    folder: Path, trainer: Any, processor: Any, *, template: Template, stage: str, dtype: torch.dtype, **facts: Any
) -> Path:
    """Save model, processor, card and the policy's generation settings into a temporary neighbour of ``folder``; return it, to
    be moved into place. Float32 weights are rounded to ``dtype``; those of an adapter are not."""
    partial = folder.with_name(f"{folder.name}.partial")
    trainer.save_model(str(partial))
    if trainer.accelerator.is_main_process:
        precision.round_checkpoint(partial, dtype)
        processor.save_pretrained(partial)
        write_card(partial, template=template, stage=stage, commit=commit(), command=command_line(), **facts)
        write_model_card(partial)
    return partial


def close_run(out: Path, trainer: Any, processor: Any, *, template: Template, stage: str, **facts: Any) -> Path:
    """Save model, processor and card into ``out/final``, whole or not at all; returns it."""
    final = out / FINAL
    partial = write_partial(final, trainer, processor, template=template, stage=stage, **facts)
    if trainer.accelerator.is_main_process:
        if (partial / CRITIC).exists():  # a part of the run, not of the judge
            shutil.rmtree(out / CRITIC, ignore_errors=True)
            (partial / CRITIC).rename(out / CRITIC)
        partial.rename(final)
    trainer.accelerator.wait_for_everyone()
    return final


def micro_batches(config: TrainConfig, sequences: int, processes: int | None = None) -> int:
    """Return the micro-batches of each process in a batch of ``sequences``, which counts all ``processes`` (default: those of
    now). Raise ConfigError if they cannot be divided evenly."""
    processes = processes or num_processes()
    at_once = config.micro_batch_size * processes
    if sequences % at_once:
        raise ConfigError(
            f"a batch has {sequences} sequences over all processes, which is not divisible by {processes} processes x "
            f"micro_batch_size {config.micro_batch_size} = {at_once}; lower micro_batch_size, or change the number of processes"
        )
    return sequences // at_once


def micro_batch_size(most: int, sequences: int, processes: int | None = None) -> int:
    """Return the largest micro-batch, at most ``most``, that divides each process's part of ``sequences``. Raise ConfigError if
    the processes do not divide them."""
    processes = processes or num_processes()
    if sequences % processes:
        raise ConfigError(f"{sequences} rollouts per step (over all processes) are not divisible by {processes} processes")
    share = sequences // processes
    return max(size for size in range(1, min(most, share) + 1) if share % size == 0)


def trackers(report_to: str) -> list[str]:
    """The names in ``report_to``. Raises ConfigError for one that is not installed."""
    names = report_to.split(",")
    if missing := [name for name in names if name != "none" and importlib.util.find_spec(name) is None]:
        raise ConfigError(f"report_to: {report_to}: not installed; pip install {' '.join(missing)}, or report_to: none")
    return names


def schedule_arguments(config: TrainConfig) -> dict[str, Any]:
    """Return the schedule of the learning rate as transformers' arguments; warm-up below 1 is a fraction of all steps, rounded
    up."""
    arguments: dict[str, Any] = {
        "lr_scheduler_type": config.lr_scheduler,
        "warmup_steps": config.warmup_ratio or config.warmup_steps,
    }
    if config.min_lr_ratio:
        arguments |= {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": config.min_lr_ratio}}
    return arguments


def common_arguments(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Return the arguments of every stage's trainer; bfloat16 on an accelerator, float32 on a CPU. Raise ConfigError for one
    process that sees several cards: Trainer would split each batch over them, and images unevenly."""
    if "WORLD_SIZE" not in os.environ and (cards := torch.cuda.device_count()) > 1:
        raise ConfigError(
            f"{cards} GPUs found, but no launcher: `accelerate launch --num_processes {cards} -m rewardlab.cli ...` "
            "trains on all of them (configs/accelerate/), CUDA_VISIBLE_DEVICES=0 on one"
        )
    on_gpu = torch.cuda.is_available()
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"  # on a CPU, accelerate takes use_cpu to mean one process
    if deepspeed and on_gpu and config.dtype == "float32":
        raise ConfigError("dtype: float32: DeepSpeed returns its weights in bfloat16 only; use dtype: auto or bfloat16")
    return {
        "output_dir": str(out),
        "learning_rate": config.learning_rate,
        **schedule_arguments(config),
        "num_train_epochs": config.epochs,
        "max_steps": config.max_steps,
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": micro_batches(config, config.batch_size),
        "gradient_checkpointing": config.gradient_checkpointing,
        "max_grad_norm": config.max_grad_norm,
        "adam_beta2": config.adam_beta2,
        "weight_decay": config.weight_decay,
        "save_steps": config.save_steps,
        "save_total_limit": config.save_total_limit,
        "logging_steps": config.logging_steps,
        "report_to": trackers(config.report_to),
        "project": PROJECT,
        "run_name": out.resolve().name,  # else trackers make one up
        "logging_nan_inf_filter": False,  # a loss that is no number is to be seen
        "seed": config.seed,
        "disable_tqdm": True,
        "bf16": precision.trains_in_bfloat16(),
        "use_cpu": not on_gpu and not deepspeed,
        "ddp_backend": "gloo" if deepspeed and not on_gpu else None,
    }


def _free_shared_memory() -> int:
    return shutil.disk_usage(SHARED_MEMORY).free if Path(SHARED_MEMORY).is_dir() else MIN_SHARED_MEMORY


def supervised_arguments(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Return :func:`common_arguments`, and the worker processes that read, decode and tokenize samples."""
    workers = data_workers(config)
    if workers and (free := _free_shared_memory()) < MIN_SHARED_MEMORY:  # a worker that finds none is killed
        log_line(
            f"{SHARED_MEMORY} has {free >> 20:,} MiB, too little for worker processes: samples are read by the trainer itself, "
            "which is slower. Give a container more, as by --shm-size 8g"
        )
        workers = 0
    if workers:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker is one thread, and says so otherwise
    return {**common_arguments(config, out), "dataloader_num_workers": workers, "dataloader_persistent_workers": workers > 0}


def data_workers(config: TrainConfig) -> int:
    """Return ``config.data_workers``, or the cores there are for this process where these are fewer."""
    return min(config.data_workers, num_cores())


class RunLog(TrainerCallback):
    """Appends every logged record to ``metrics.jsonl`` and moves a progress bar."""

    def __init__(self, out: Path, advance: Advance, note: str) -> None:
        self._path, self._advance, self._note = out / METRICS, advance, note
        self._step = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._advance(state.global_step)
        self._step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._advance(state.global_step - self._step)
        self._step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        values = {name: value for name, value in (logs or {}).items() if value is not None}
        # nan is a mean of nothing, but for what every step has
        metrics = {name: value for name, value in values.items() if value == value or name in ("loss", "grad_norm", "reward")}
        metrics = {
            name.replace(TRACKED_EVAL, EVAL, 1) if name.startswith(TRACKED_EVAL) else name: metrics[name] for name in metrics
        }
        if not metrics or not state.is_world_process_zero:
            return
        with self._path.open("a", encoding="utf-8") as file:
            finite = {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}  # JSON has no nan
            file.write(json.dumps({"step": state.global_step, **finite}) + "\n")
        if self._note in metrics:
            self._advance(0, note=f"{self._note} {float(metrics[self._note]):.3f}")


Changes = Mapping[str, tuple[Any, Any]]  # dotted key -> its value before, and now

# Where a run finds its endpoint and what it prints: not what it is. Another value continues the same run.
_SURROUNDINGS = {"base_url", "api_key_env", "concurrency", "deadline_s", "report_to", "logging_steps", "save_total_limit"}
_SURROUNDINGS |= {"health", "devices", "data_workers", "gradient_checkpointing"}
_SURROUNDINGS |= {"dtype"}  # how the result is written: what learns is float32 whatever it says
# How a batch is read, not what is in it: no draw depends on these but LoRA's dropout, and sums are rounded in another order.
_ROUNDING = {"attn_implementation", "micro_batch_size", "micro_batch_tokens", "sampling_batch_size", "judge_batch_size"}
_JUDGES = {"judge", "other_judges", "signs.second_judge"}  # "openai:MODEL@URL" among them
_ROUNDING |= {"evaluation.batch_size"}  # `batch_size` alone is the optimizer step's


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two resolved configs, with both values; None for a missing key."""
    changes: dict[str, tuple[Any, Any]] = {}
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes |= changed_settings(old, new, f"{prefix}{name}.")
        elif old != new:
            changes[f"{prefix}{name}"] = (old, new)
    return changes


def decides(key: str, before: Any, now: Any) -> bool:
    """Return whether another value of a dotted key changes what a run computes. The model of a served judge does, its address
    does not."""
    if {key, *key.split(".")} & (_SURROUNDINGS | _ROUNDING):
        return False
    return key not in _JUDGES or _without_addresses(before) != _without_addresses(now)


def _without_addresses(specs: Any) -> list[str]:
    """Return one judge, several, or none, by their names before the ``@`` of an address."""
    names = [specs] if isinstance(specs, str) else specs or []
    return [name.partition("@http")[0] for name in names]


def text_of_changes(changes: Changes) -> str:
    """Return the log line of changed settings under which a run resumes."""
    each = ", ".join(f"{key} {_text(now)} (was {_text(before)})" for key, (before, now) in changes.items())
    rounded = any(key in _ROUNDING for key in changes)
    return f"resumes with {each}" + ("; from here on its numbers differ from the same run's by rounding" if rounded else "")


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
