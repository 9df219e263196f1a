"""The skeleton of every training stage: open the folder, build the trainer, train under the watchdog, close the folder.

A stage says how its trainer is built and how its result is written. After a rollback all of this runs again from an older
checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardlab.config import MethodConfig, TrainConfig
from rewardlab.data.files import write_atomic
from rewardlab.errors import MediaError
from rewardlab.models.attention import attention_of
from rewardlab.models.loading import output_dtype
from rewardlab.processes import is_main
from rewardlab.prompts import Template
from rewardlab.reporting.progress import bar, log_line
from rewardlab.training.run.evaluation import Evaluate, Evaluation
from rewardlab.training.run.folder import CONFIG, CRITIC, RunLog, close_run, open_run, record_data_files
from rewardlab.training.run.inputs import ReadablePairs
from rewardlab.training.run.resume import run_steps
from rewardlab.training.run.watchdog import record_outcome, run_with_rollback
from rewardlab.types import PreferencePair


def count_steps(config: TrainConfig, sequences: int) -> int:
    """Return the optimizer steps of a run whose epoch has ``sequences``, as transformers counts them: RL leaves out the last
    rollout batch of an epoch if it is not full."""
    per_epoch = math.ceil(sequences / config.batch_size)
    if isinstance(config, MethodConfig):
        per_epoch = sequences // config.iterations // config.rollout_batch_size * config.steps_of_rollouts
    per_epoch = max(1, per_epoch)
    return config.max_steps if config.max_steps > 0 else math.ceil(config.epochs * per_epoch)


@dataclass(frozen=True)
class Built:
    """A trainer ready to run. ``finish`` writes its result and returns the folder; ``cleanup`` is called however training
    ends."""

    trainer: Any
    finish: Callable[[], Path]
    cleanup: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Stage:
    """A run of ``config`` in ``out`` on data of fingerprint ``data``. ``build(resume)`` makes its trainer for a checkpoint or
    None; ``sequences`` of one epoch and ``metric`` are for the progress bar; ``evaluation`` runs meanwhile; the file of
    ``pairs`` is named in ``run.json``; ``readable`` are the pairs that are read.
    """

    name: str
    config: TrainConfig
    out: Path
    data: str
    sequences: int
    build: Callable[[str | None], Built]
    metric: str = "loss"
    evaluation: Evaluation | None = None
    pairs: Sequence[PreferencePair] = ()
    readable: ReadablePairs | None = None

    @property
    def num_steps(self) -> int:
        return count_steps(self.config, self.sequences)


def run_stage(stage: Stage) -> Path:
    """Run, or resume, a stage; return the folder of its result. Raise ConfigError for a finished or different run in its
    folder, HealthError for one that went wrong, DataError if the data make no step."""
    try:
        return run_with_rollback(stage.config, stage.out, lambda: _attempt(stage))
    except MediaError as error:
        if stage.readable is None:
            raise
        raise stage.readable.list_pair(error) from error


def _attempt(stage: Stage) -> Path:
    resume = open_run(stage.out, stage.config, data=stage.data)
    record_data_files(stage.out, stage.pairs)
    if stage.readable:
        stage.readable.write_record()
    built = stage.build(resume)
    record_models(stage.out, built.trainer)
    try:
        with bar(stage.name, stage.num_steps) as advance:
            built.trainer.add_callback(RunLog(stage.out, advance, stage.metric))
            if stage.evaluation:
                facts: dict[str, Any] = {"stage": stage.name, "base": stage.config.model}
                facts["dtype"] = output_dtype(stage.config.model, stage.config.dtype)
                built.trainer.add_callback(Evaluate(stage.evaluation, built.trainer, stage.out, **facts))
            run_steps(built.trainer, stage.config, stage.out, resume)
        final = built.finish()
        record_outcome(stage.out, stage.config.health)
        return final
    finally:
        built.cleanup()


def checkpoint_of(
    trainer: Any, processor: Any, out: Path, *, template: Template, stage: str, config: TrainConfig
) -> Callable[[], Path]:
    """Return a function that writes the final checkpoint: model, processor and card."""
    dtype = output_dtype(config.model, config.dtype)
    return lambda: close_run(out, trainer, processor, template=template, stage=stage, dtype=dtype, base=config.model)


def models_of(trainer: Any) -> dict[str, Any]:
    """Return the models that a trainer has loaded, by what they are to it; for a DeepSpeed engine, its module."""
    models = {
        "model": trainer.model,
        "reference": getattr(trainer, "ref_model", None),
        CRITIC: getattr(trainer.model, CRITIC, None),
        "process reward": getattr(getattr(trainer, "_process_reward", None), "model", None),
    }
    return {name: getattr(model, "module", model) for name, model in models.items() if model is not None}


def record_models(out: Path, trainer: Any) -> None:
    """Log the attention and weight type of each model of a run and write them into its ``run.json``; a change on resuming is
    logged."""
    if not is_main():
        return
    models = models_of(trainer)
    facts = {
        "attention": {name: attention_of(model) for name, model in models.items()},
        "weights": {name: str(next(model.parameters()).dtype).removeprefix("torch.") for name, model in models.items()},
    }
    path = out / CONFIG
    record = json.loads(path.read_text(encoding="utf-8"))
    before = {name: record[name] for name in facts} if facts.keys() <= record.keys() else {}
    write_atomic(path, json.dumps({**record, **facts}, indent=1) + "\n")
    changed = f"; before: {_text(before)}, so numbers differ by rounding" if before and before != facts else ""
    log_line(f"{out}: {_text(facts)}{changed}")


def _text(facts: dict[str, dict[str, str]]) -> str:
    """Return the facts by the config's key; ``dtype`` is the type of ``final/``, not that of the weights that learn."""
    each = facts["attention"].items()
    return "; ".join(f"{name}: attn_implementation {attention}, weights {facts['weights'][name]}" for name, attention in each)
