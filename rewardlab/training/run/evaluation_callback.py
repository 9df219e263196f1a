"""When a run is evaluated, and what follows: a line of metrics, the best weights kept, an early end.

What was seen is in ``evaluations.jsonl``, one line an evaluation: its metrics, and the score of every pair. It is all the state
there is: a run that goes on from a checkpoint reads it, and knows its best evaluation and its patience again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.metrics.intervals import difference_interval
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.best import BEST, best_step, forget_previous, restore_best, save_best
from rewardlab.training.run.evaluation import Evaluation, evaluate
from rewardlab.training.run.folder import CONFIG, EVAL, EVALUATIONS, METRICS, TRACKED_EVAL


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation after ``step`` optimizer steps; ``scores`` are (pair id, score by the metric that decides)."""

    step: int
    metrics: dict[str, float]
    scores: Sequence[tuple[str, float]]

    @property
    def value(self) -> float:
        return sum(score for _, score in self.scores) / len(self.scores)


@dataclass(frozen=True)
class EvaluationSummary:
    """What a run's evaluations come to, as ``run.json`` holds it. ``gain`` is the best less the last, pair by pair, in 0..1."""

    metric: str
    evaluations: int
    best_step: int
    best: float
    last_step: int
    last: float
    gain: float
    gain_interval: tuple[float, float]
    best_kept: bool
    stopped_early: bool
    time_frac: float


def best_record(records: Sequence[EvaluationRecord]) -> EvaluationRecord:
    """Return the first of the best."""
    return max(records, key=lambda record: (record.value, -record.step))


def is_exhausted(records: Sequence[EvaluationRecord], patience: int | None) -> bool:
    """Return whether the last ``patience`` evaluations brought no new best one."""
    return patience is not None and bool(records) and len(records) - 1 - records.index(best_record(records)) >= patience


class Evaluate(TrainerCallback):
    """Evaluates ``trainer``'s model at the start, every so many steps and at the end of the run in ``out``.

    ``facts`` go into the card of the best weights: the stage, and the model it began with.
    """

    def __init__(self, evaluation: Evaluation, trainer: Any, out: Path, **facts: Any) -> None:
        self._evaluation, self._trainer, self._out, self._facts = evaluation, trainer, out, facts
        self._records: list[EvaluationRecord] = []
        self._seconds, self._begun = 0.0, time.monotonic()
        self._kept_after = -1  # the step after which the best weights are kept

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun, step = time.monotonic(), state.global_step
        if state.is_world_process_zero:
            restore_best(self._out, step)
        self._trainer.accelerator.wait_for_everyone()
        self._records = read_records(self._out, step)
        best = best_record(self._records).step if self._records and self._evaluation.config.keep_best else 0
        if best and best_step(self._out / BEST) != best:  # a run that was taken back beyond a checkpoint
            self._kept_after = step
            self._say(f"the weights of step {best}, the best so far, are gone; the best from here on are kept")
        if not self._records:
            self._evaluate(state)
        elif step == 0 and not any(f"{EVAL}accuracy" in row for row in read_complete_lines(self._out / METRICS)):
            self._log(self._records[0])  # killed between the two lines
        control.should_training_stop = is_exhausted(self._records, self._evaluation.config.patience)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, config = state.global_step, self._evaluation.config
        if step % config.every_steps and step < state.max_steps:
            return
        self._evaluate(state)
        if is_exhausted(self._records, config.patience):
            control.should_training_stop = control.should_save = True
            self._say(
                f"step {step}: the run ends early, for {config.patience} evaluations in a row brought no {config.metric} above "
                f"{_percent(best_record(self._records).value)} of step {best_record(self._records).step} (evaluation.patience)"
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            forget_previous(self._out)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        summary = self._summary(state)
        if state.is_world_process_zero:
            path = self._out / CONFIG
            record = json.loads(path.read_text(encoding="utf-8"))
            write_atomic(path, json.dumps({**record, "evaluation": asdict(summary)}, indent=1) + "\n")
        self._say(summary_text(summary, len(self._evaluation.pairs), self._out))

    def _evaluate(self, state: Any) -> None:
        start_time = time.monotonic()
        result = evaluate(self._evaluation, self._trainer)
        seconds = time.monotonic() - start_time
        ids = [pair.pair_id for pair in self._evaluation.pairs]
        metrics = {**result.metrics, "eval/seconds": seconds}
        record = EvaluationRecord(state.global_step, metrics, list(zip(ids, result.scores, strict=True)))
        self._records.append(record)
        candidates = [other for other in self._records if other.step > self._kept_after]
        if record.step and record is best_record(candidates) and self._evaluation.config.keep_best:
            self._keep(record)
        if state.is_world_process_zero:
            with (self._out / EVALUATIONS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")
        self._log(record)
        self._say(record_text(record))
        self._seconds += time.monotonic() - start_time

    def _keep(self, record: EvaluationRecord) -> None:
        evidence = {"metric": self._evaluation.config.metric, "value": record.value, "pairs": len(record.scores)}
        processor = self._trainer.processing_class or self._evaluation.processor
        template = self._evaluation.template
        save_best(self._out, self._trainer, processor, step=record.step, template=template, held_out=evidence, **self._facts)

    def _log(self, record: EvaluationRecord) -> None:
        """Log as transformers' Trainer does: what a trainer below it has gathered for its own next line stays there, and that
        line, where this step is to have one, comes all the same."""
        control = self._trainer.control
        due = control.should_log
        Trainer.log(self._trainer, {name.replace(EVAL, TRACKED_EVAL, 1): value for name, value in record.metrics.items()})
        control.should_log = due

    def _summary(self, state: Any) -> EvaluationSummary:
        best, last = best_record(self._records), self._records[-1]
        gains = [one - other for (_, one), (_, other) in zip(best.scores, last.scores, strict=True)]
        config = self._evaluation.config
        return EvaluationSummary(
            config.metric,
            len(self._records),
            best.step,
            best.value,
            last.step,
            last.value,
            best.value - last.value,
            difference_interval(gains),
            best_step(self._out / BEST) == best.step,
            is_exhausted(self._records, config.patience) and state.global_step < state.max_steps,
            self._seconds / max(time.monotonic() - self._begun, 1e-9),
        )

    def _say(self, text: str) -> None:
        if self._trainer.accelerator.is_main_process:
            log_line(text)


def read_records(out: Path, step: int) -> list[EvaluationRecord]:
    """Return the evaluations of a run up to ``step``."""
    rows = read_complete_lines(out / EVALUATIONS)
    records = [EvaluationRecord(row["step"], row["metrics"], [(name, score) for name, score in row["scores"]]) for row in rows]
    return [record for record in records if record.step <= step]


def record_text(record: EvaluationRecord) -> str:
    """Return what is said of an evaluation in one line."""
    metrics = record.metrics

    def share(name: str) -> str:
        low, high = metrics.get(f"{EVAL}{name}_low"), metrics.get(f"{EVAL}{name}_high")
        ends = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
        return f"{_percent(metrics[EVAL + name])}{ends}"

    parts = [f"step {record.step}: held-out accuracy {share('accuracy')} of {len(record.scores):,} pairs"]
    for name, words in (
        ("consistent_accuracy", "right in both orders"),
        ("invalid_frac", "invalid"),
        ("blank_accuracy", "with grey images"),
    ):
        if EVAL + name in metrics:
            parts.append(f"{words} {share(name)}")
    return ", ".join(parts)


def summary_text(summary: EvaluationSummary, num_pairs: int, out: Path) -> str:
    """Return what is said of a run's evaluations at its end."""
    low, high = (100 * end for end in summary.gain_interval)
    if summary.best_step == summary.last_step:
        sentence = f"the last of {summary.evaluations} evaluations is the best: {summary.metric} {_percent(summary.best)}"
    else:
        where = "the model that the run began with" if summary.best_step == 0 else f"step {summary.best_step}"
        kept = f", its weights are in {out / BEST}" if summary.best_kept else ""
        sentence = (
            f"of {summary.evaluations} evaluations the best is that of {where}: {summary.metric} {_percent(summary.best)}, "
            f"{100 * summary.gain:.1f} points [{low:.1f}, {high:.1f}] above the last, step {summary.last_step}{kept}"
        )
    return (
        f"evaluation: {sentence}. It was chosen on the same {num_pairs:,} pairs, so expect less on others. "
        f"{_percent(summary.time_frac)} of the time went into evaluating"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
