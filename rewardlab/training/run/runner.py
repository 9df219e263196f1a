"""The skeleton that every training stage runs in: open the folder, build the trainer, train under the watchdog, close the
folder.

A stage says how its trainer is built and how its result is written. Where the watchdog takes a run back, all of this happens
again from an older checkpoint, in every stage alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardlab.config import TrainConfig
from rewardlab.errors import MediaError
from rewardlab.models.loading import output_dtype
from rewardlab.prompts import Template
from rewardlab.reporting.progress import bar
from rewardlab.training.run.evaluation import Evaluation
from rewardlab.training.run.evaluation_callback import Evaluate
from rewardlab.training.run.folder import RunLog, close_run, open_run, record_data_files
from rewardlab.training.run.model_facts import record_models
from rewardlab.training.run.outcome import record_outcome
from rewardlab.training.run.resume import run_steps
from rewardlab.training.run.unreadable import ReadablePairs
from rewardlab.training.run.watchdog import run_with_rollback
from rewardlab.types import PreferencePair


def count_steps(config: TrainConfig, sequences: int) -> int:
    """Return the optimizer steps of a run whose epoch has ``sequences``, as transformers counts them."""
    per_epoch = max(1, math.ceil(sequences / config.batch_size))
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
    """A run of ``config`` in ``out`` on data of fingerprint ``data``. ``build(resume)`` makes its trainer, given the
    checkpoint to resume from or None; ``sequences`` are those of one epoch, for the progress bar, which shows ``metric``.
    ``evaluation``: what is evaluated while it trains; ``pairs``: those whose file is to be named in ``run.json``; ``readable``:
    what is read of the data."""

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
    """Run, or resume, a stage; return the folder of its result.

    Raise ConfigError for a finished or different run in its folder, HealthError for one that went wrong, DataError where the
    data make not one step.
    """
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
