"""Evaluation during a run: a line of metrics, the weights of the best evaluation in ``OUT/best``, an early end.

``evaluations.jsonl`` has one line per evaluation, its metrics and the score of every pair. It is the whole state: a run that
resumes from a checkpoint reads its best evaluation and its patience from it. A killed run resumes from its last checkpoint, so
the best weights as of that checkpoint are kept until the next one is complete.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.metrics.intervals import difference_interval
from rewardlab.models.checkpoints import CARD, read_card
from rewardlab.prompts import Template
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.evaluation import Evaluation, evaluate, prompt_of
from rewardlab.training.run.folder import CONFIG, CRITIC, EVAL, EVALUATIONS, METRICS, TRACKED_EVAL, write_partial

MOST_TIME = 0.03  # share of a run's time that goes into evaluating before a line warns of it


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluation after ``step`` optimizer steps; ``scores`` are (pair id, score by the metric that decides)."""

    step: int
    metrics: dict[str, float]
    scores: Sequence[tuple[str, float]]

    @property
    def value(self) -> float:
        return sum(score for _, score in self.scores) / len(self.scores)

    @property
    def has_verdicts(self) -> bool:
        """Return whether any judgment could be read."""
        return self.metrics.get(f"{EVAL}invalid_frac", 0.0) < 1


@dataclass(frozen=True)
class EvaluationSummary:
    """The evaluations of a run, as in ``run.json``. ``gain`` is the best less the last, pair by pair, in 0..1, and
    ``gain_interval`` its 95 % interval over prompts; ``time_frac`` is of the time since the run last began or resumed."""

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
    """Return whether ``patience`` evaluations in a row brought no new best; those before the first verdict do not count."""
    first_verdicts = next((n for n, record in enumerate(records) if record.has_verdicts), None)
    if patience is None or first_verdicts is None:
        return False
    return len(records) - 1 - max(first_verdicts, records.index(best_record(records))) >= patience


class Evaluate(TrainerCallback):
    """Evaluates ``trainer``'s model at the start, every so many steps and at the end. ``base``, the model that the run begins
    with, and ``facts``, such as the stage, go into the card of the best weights."""

    def __init__(self, evaluation: Evaluation, trainer: Any, out: Path, *, base: str, **facts: Any) -> None:
        self._evaluation, self._trainer, self._out, self._base, self._facts = evaluation, trainer, out, base, facts
        self._records: list[EvaluationRecord] = []
        self._seconds, self._begun = 0.0, time.monotonic()
        self._since = (0, self._begun)  # step and time at which training went on after the last evaluation
        self._has_warned = False
        self._kept_after = -1  # the step after which the best weights are kept

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun, step = time.monotonic(), state.global_step
        self._since = (step, self._begun)
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
        control.should_training_stop = self._is_exhausted

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, config = state.global_step, self._evaluation.config
        if step % config.every_steps and step < state.max_steps:
            return
        self._evaluate(state)
        if self._is_exhausted:
            best = best_record(self._records)
            control.should_training_stop = control.should_save = True
            self._say(
                f"step {step}: the run ends early, for {config.patience} evaluations in a row brought no {config.metric} above "
                f"{_percent(best.value)} of {_place(best.step)} (evaluation.patience)"
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            forget_previous(self._out)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        summary = self._summary(stopped_early=self._is_exhausted and state.global_step < state.max_steps)
        if state.is_world_process_zero:
            path = self._out / CONFIG
            record = json.loads(path.read_text(encoding="utf-8"))
            write_atomic(path, json.dumps({**record, "evaluation": asdict(summary)}, indent=1) + "\n")
        self._say(summary_text(summary, len(self._evaluation.pairs), self._out, self._base))

    @property
    def _is_exhausted(self) -> bool:
        return is_exhausted(self._records, self._evaluation.config.patience)

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
        self._records[-1] = record = self._with_time(record, start_time)
        if state.is_world_process_zero:
            with (self._out / EVALUATIONS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")
        self._log(record)
        self._say(record_text(record))
        self._warn_of_time(record)
        now = time.monotonic()
        self._seconds += now - start_time
        self._since = (record.step, now)

    def _with_time(self, record: EvaluationRecord, start_time: float) -> EvaluationRecord:
        """Return the record with the fraction of time that an evaluation every ``every_steps`` steps takes; unchanged if no
        step was made since the last."""
        steps, trained = record.step - self._since[0], start_time - self._since[1]
        if steps <= 0:
            return record
        spent = time.monotonic() - start_time
        share = spent / (spent + trained / steps * self._evaluation.config.every_steps)
        return replace(record, metrics={**record.metrics, "eval/time_frac": share})

    def _warn_of_time(self, record: EvaluationRecord) -> None:
        share = record.metrics.get("eval/time_frac", 0.0)
        if share > MOST_TIME and not self._has_warned:
            self._has_warned = True
            every = self._evaluation.config.every_steps
            self._say(
                f"evaluating every {every:,} steps takes {_percent(share)} of the time, more than {100 * MOST_TIME:.0f} %: "
                f"take evaluation.every_steps={steps_between(share, every)}, or fewer num_pairs"
            )

    def _keep(self, record: EvaluationRecord) -> None:
        evidence = {"metric": self._evaluation.config.metric, "value": record.value, "pairs": len(record.scores)}
        processor = self._trainer.processing_class or self._evaluation.processor
        template, facts = self._evaluation.template, {"base": self._base, **self._facts}
        save_best(self._out, self._trainer, processor, step=record.step, template=template, held_out=evidence, **facts)

    def _log(self, record: EvaluationRecord) -> None:
        """Log as transformers' Trainer does, without flushing what a trainer below it has collected for its own next line."""
        control = self._trainer.control
        due = control.should_log
        Trainer.log(self._trainer, {name.replace(EVAL, TRACKED_EVAL, 1): value for name, value in record.metrics.items()})
        control.should_log = due

    def _summary(self, *, stopped_early: bool) -> EvaluationSummary:
        best, last = best_record(self._records), self._records[-1]
        gains = [one - other for (_, one), (_, other) in zip(best.scores, last.scores, strict=True)]
        prompts = [repr(prompt_of(pair)) for pair in self._evaluation.pairs]
        return EvaluationSummary(
            self._evaluation.config.metric,
            len(self._records),
            best.step,
            best.value,
            last.step,
            last.value,
            best.value - last.value,
            difference_interval(gains, prompts),
            best_step(self._out / BEST) == best.step,
            stopped_early,
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
    """Return the log line of an evaluation."""
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


def summary_text(summary: EvaluationSummary, num_pairs: int, out: Path, base: str) -> str:
    """Return the log line of all evaluations of a run that started from ``base``."""
    low, high = (100 * end for end in summary.gain_interval)
    if summary.best_step == summary.last_step:
        sentence = f"the last of {summary.evaluations} evaluations is the best: {summary.metric} {_percent(summary.best)}"
    else:
        sentence = (
            f"of {summary.evaluations} evaluations the best is that of {_place(summary.best_step)}: {summary.metric} "
            f"{_percent(summary.best)}, {100 * summary.gain:.1f} points [{low:.1f}, {high:.1f}] above the last, step "
            f"{summary.last_step}"
        )
    if summary.best_kept:
        sentence += f", its weights are in {out / BEST}"
    elif summary.best_step == 0:
        sentence += f", its weights are {base} as it was: there is no {out / BEST}"
    elif (kept := best_step(out / BEST)) is not None:
        sentence += f", its weights are gone, and {out / BEST} has those of step {kept}"
    else:
        sentence += ", its weights were not kept"
    share = f"{_percent(summary.time_frac)} of the time went into evaluating"
    if summary.time_frac > MOST_TIME:
        share += f", more than {100 * MOST_TIME:.0f} %: raise evaluation.every_steps, or lower num_pairs"
    return f"evaluation: {sentence}. It was chosen on the same {num_pairs:,} pairs, so expect less on others. {share}"


def steps_between(share: float, every_steps: int) -> int:
    """Return the steps between evaluations that take :data:`MOST_TIME` of the time, in two digits, if every ``every_steps``
    takes ``share``."""
    needed = every_steps * share / (1 - share) * (1 - MOST_TIME) / MOST_TIME
    unit: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / unit) * unit


def _place(step: int) -> str:
    return f"step {step}" if step else "the model that the run began with"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


BEST, PREVIOUS = "best", "best.previous"


def best_step(folder: Path) -> int | None:
    """Return the step whose weights ``folder`` holds; None where there is no such folder."""
    card = read_card(folder) if (folder / CARD).exists() else None
    return None if card is None else int(card["step"])


def save_best(out: Path, trainer: Any, processor: Any, *, step: int, template: Template, stage: str, **facts: Any) -> None:
    """Save the weights of ``step`` into ``out/best``, with processor and card; the previous best is kept until the next
    checkpoint."""
    best, previous = out / BEST, out / PREVIOUS
    if trainer.accelerator.is_main_process:
        _remove(best.with_name(f"{BEST}.partial"))
    trainer.accelerator.wait_for_everyone()
    partial = write_partial(best, trainer, processor, template=template, stage=stage, step=step, **facts)
    if trainer.accelerator.is_main_process:
        _remove(partial / CRITIC)  # a part of the run, not of the judge
        if best.exists() and not previous.exists():
            best.rename(previous)
        _remove(best)
        partial.rename(best)
    trainer.accelerator.wait_for_everyone()


def forget_previous(out: Path) -> None:
    """Remove what was the best as of an older checkpoint: a newer one is whole."""
    _remove(out / PREVIOUS)


def restore_best(out: Path, step: int) -> None:
    """Restore ``out/best`` as of the checkpoint of ``step``, from which a run resumes."""
    best, previous = out / BEST, out / PREVIOUS
    _remove(best.with_name(f"{BEST}.partial"))
    for folder in (best, previous):
        if folder.exists() and (of_step := best_step(folder)) is not None and of_step > step:
            _remove(folder)
    if previous.exists():
        if best.exists():
            _remove(previous)
        else:
            previous.rename(best)


def _remove(folder: Path) -> None:
    """Remove a folder; killed within, it leaves none that could be taken for a whole one."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)
