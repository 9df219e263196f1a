"""Evaluations during a run: a line of metrics each, the weights of the best in ``OUT/best``, early stopping.

An evaluation is greedy, each pair in both orders, by the package's own decoder and rules of votes, on the trainer's weights.
The processes share the pairs. An answer without a verdict is wrong, and counted as invalid.

``evaluations.jsonl`` has one line per evaluation, its metrics and the score of every pair. It is the whole state: a run that
resumes from a checkpoint reads its best evaluation and its patience from it. A killed run resumes from its last checkpoint, so
the best weights as of that checkpoint are kept until the next one is complete.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from rewardlab.config import EvaluationConfig, RLConfig, SFTConfig
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.data.rows import with_blank_images
from rewardlab.errors import DataError, RewardlabError
from rewardlab.judging.engines import judge_kind
from rewardlab.metrics.accuracy import Labeled, invalid_rate, pair_score, position_bias, swap_consistency
from rewardlab.metrics.intervals import difference_interval, mean_estimate
from rewardlab.models.checkpoints import CARD, read_card
from rewardlab.prompts import Template
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.folder import CONFIG, CRITIC, EVAL, EVALUATIONS, METRICS, TRACKED_EVAL, write_partial
from rewardlab.training.run.held_out import answer_tokens, prompt_of
from rewardlab.training.run.parallel import whole_weights
from rewardlab.training.run.preflight import processor_of
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.votes import in_order

DEFAULT_SEQUENCES = 64
JudgePairs = Callable[[Any, Any, Sequence[PreferencePair]], list[Judgment]]  # of a model, its processor, and pairs
MOST_TIME = 0.03  # fraction of a run's time above which its last line warns of evaluations


@dataclass(frozen=True)
class Task:
    """Pairs that one process judges at a time; ``blank``: with grey images."""

    pairs: Sequence[PreferencePair]
    blank: bool


@dataclass(frozen=True)
class Evaluation:
    """How ``pairs`` are evaluated: ``judge`` judges them with a model and ``processor``; ``template`` is the judge's;
    ``sequences`` are decoded at a time, two of each pair."""

    config: EvaluationConfig
    pairs: Sequence[PreferencePair]
    template: Template
    processor: Any
    judge: JudgePairs
    sequences: int

    @property
    def tasks(self) -> list[Task]:
        """Return the same tasks on any number of processes: what a pair is read beside is the same, too."""
        at_once = max(1, self.sequences // 2)
        seen = [pair for pair in self.pairs if pair.images or any(pair.response_images)] if self.config.blank_images else []
        return [
            Task(pairs[start : start + at_once], blank)
            for pairs, blank in ((self.pairs, False), (seen, True))
            for start in range(0, len(pairs), at_once)
        ]


@dataclass(frozen=True)
class Result:
    """``metrics`` by their names in metrics.jsonl; ``scores`` of each pair, 0..1, by the metric that decides."""

    metrics: dict[str, float]
    scores: list[float]


def greedy_judge(template: Template, max_tokens: int, sequences: int) -> JudgePairs:
    """Return the judge of a template: greedy answers in both orders, or probabilities where it asks for the verdict alone."""
    kind = judge_kind(template)

    def judge(model: Any, processor: Any, pairs: Sequence[PreferencePair]) -> list[Judgment]:
        sampler = HFSampler(model, processor, batch_size=sequences)
        built = kind(sampler, template, temperature=0.0, max_tokens=max_tokens)
        return built.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=1, seed=0)

    return judge


@contextmanager
def evaluation_mode(trainer: Any) -> Iterator[Any]:
    """Yield the trainer's model without dropout and whole on every process; afterwards it and torch's random generators are as
    before."""
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    states = [(module, module.training, getattr(module, "gradient_checkpointing", None)) for module in model.modules()]
    device = trainer.accelerator.device
    for module, _, checkpoints in states:
        if checkpoints is not None:  # else TRL would switch it off and on again, in another form than it had
            module.gradient_checkpointing = False
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            trainer.accelerator.autocast(),
            whole_weights(trainer) as whole,
        ):
            yield whole.eval()
    finally:
        for module, training, checkpoints in states:
            module.training = training
            if checkpoints is not None:
                module.gradient_checkpointing = checkpoints


def evaluate(evaluation: Evaluation, trainer: Any) -> Result:
    """Judge the held-out pairs with ``trainer``'s model, a part of them in each process; return the same in every process.
    Raise DataError if a pair cannot be judged."""
    tasks = evaluation.tasks
    with evaluation_mode(trainer) as model:
        place, number = trainer.accelerator.process_index, trainer.accelerator.num_processes
        mine = [(n, _judgments(evaluation, model, tasks[n])) for n in range(place, len(tasks), number)]
    judged: dict[int, list[Judgment] | str] = dict(gather_object(mine))
    seen, blank = (_labelled(tasks, judged, blank=kind) for kind in (False, True))
    return evaluation_result(seen, blank, evaluation)


def _labelled(tasks: Sequence[Task], judged: Mapping[int, list[Judgment] | str], *, blank: bool) -> list[Labeled]:
    labelled: list[Labeled] = []
    for n, task in enumerate(tasks):
        judgments = judged[n]
        if isinstance(judgments, str):
            raise DataError(f"the held-out pairs cannot be judged: {judgments}")
        if task.blank is blank:
            pairs = zip(judgments, task.pairs, strict=True)
            labelled += [Labeled(judgment, int(pair.preferred == 1), _prompt_name(pair)) for judgment, pair in pairs]
    return labelled


def _prompt_name(pair: PreferencePair) -> str:
    return repr(prompt_of(pair))


def evaluation_result(seen: Sequence[Labeled], blank: Sequence[Labeled], evaluation: Evaluation) -> Result:
    """Return the metrics of judgments, and of those of grey images; a judgment's ``group`` is its prompt. Undefined metrics,
    such as the swap consistency of a judge without orders, are left out."""
    accuracies = [pair_score(item) for item in seen]
    in_both = [float(len(item.tallies) == 2 and all(right for right, _, _ in item.tallies)) for item in seen]
    consistency, bias = swap_consistency(seen), position_bias(seen)
    metrics: dict[str, float | None] = {
        **_with_interval("eval/accuracy", accuracies, seen),
        **_with_interval("eval/blank_accuracy", [pair_score(item) for item in blank], blank),
        "eval/invalid_frac": invalid_rate(seen),
        "eval/mean_length": mean(vote.completion.num_tokens for item in seen for vote in item.judgment.votes),
        "eval/pairs": len(seen),
    }
    if consistency is not None:
        metrics |= {
            **_with_interval("eval/consistent_accuracy", in_both, seen),
            "eval/accuracy_given": _accuracy_in(Order.GIVEN, seen),
            "eval/accuracy_swapped": _accuracy_in(Order.SWAPPED, seen),
            "eval/swap_consistency": consistency,
            "eval/first_frac": None if bias is None else bias + 0.5,
        }
    known = {name: float(value) for name, value in metrics.items() if value is not None}
    return Result(known, in_both if evaluation.config.metric == "consistent_accuracy" else accuracies)


def _with_interval(name: str, scores: Sequence[float], items: Sequence[Labeled]) -> dict[str, float]:
    """Return a mean and the ends of its 95 % interval over prompts; {} of nothing."""
    if not scores:
        return {}
    estimate = mean_estimate(scores, [item.group for item in items])
    low, high = estimate.interval
    return {name: estimate.accuracy, f"{name}_low": low, f"{name}_high": high}


def _accuracy_in(order: Order, items: Sequence[Labeled]) -> float:
    return mean(vote.winner == item.preferred for item in items for vote in in_order(item.judgment.votes, order))


def _judgments(evaluation: Evaluation, model: Any, task: Task) -> list[Judgment] | str:
    """Return the judgments of a task without texts and tokens, or what went wrong: the other processes wait for either."""
    try:
        pairs = with_blank_images(task.pairs) if task.blank else task.pairs
        return [_counts_only(judgment) for judgment in evaluation.judge(model, evaluation.processor, pairs)]
    except RewardlabError as error:
        return str(error)


def _counts_only(judgment: Judgment) -> Judgment:
    def short(vote: Vote) -> Vote:
        return replace(vote, completion=replace(vote.completion, text="", token_ids=(), logprobs=()))

    return replace(judgment, votes=tuple(map(short, judgment.votes)))


def sequences_at_once(config: SFTConfig | RLConfig) -> int:
    """Return how many judgments a process decodes side by side."""
    of_rollouts = config.sampling_batch_size if isinstance(config, RLConfig) else None
    return config.evaluation.batch_size or of_rollouts or DEFAULT_SEQUENCES


def plan_evaluation(
    pairs: Sequence[PreferencePair], config: SFTConfig | RLConfig, template: Template, judge: JudgePairs | None = None
) -> Evaluation | None:
    """Return how ``pairs`` are evaluated, None where there are none; by default as a judge of ``template`` answers."""
    if not pairs:
        return None
    sequences = sequences_at_once(config)
    judge = judge or greedy_judge(template, answer_tokens(config), sequences)
    return Evaluation(config.evaluation, pairs, template, processor_of(config), judge, sequences)


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
