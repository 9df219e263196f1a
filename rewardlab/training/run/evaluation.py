"""One evaluation: the judge that is being trained judges the held-out pairs, as it will after the run.

Greedily, each pair in both orders, by the package's own decoder and rules of votes, on the trainer's own weights: there is no
second copy. The processes share the pairs. An answer without a verdict is wrong, and counted as invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean as mean
from typing import Any

import torch
from accelerate.utils import gather_object

from rewardlab.config import EvaluationConfig, RLConfig, SFTConfig
from rewardlab.data.rows import with_blank_images
from rewardlab.errors import DataError, RewardlabError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.metrics.accuracy import Labeled, invalid_rate, pair_score, position_bias, swap_consistency
from rewardlab.metrics.intervals import mean_estimate
from rewardlab.prompts import Template
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.held_out import answer_tokens, prompt_of
from rewardlab.training.run.preflight import processor_of
from rewardlab.training.run.whole_weights import whole_weights
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.votes import in_order

DEFAULT_SEQUENCES = 64
JudgePairs = Callable[[Any, Any, Sequence[PreferencePair]], list[Judgment]]  # of a model, its processor, and pairs


@dataclass(frozen=True)
class Task:
    """Pairs that one process judges at a time; ``blank``: with grey images."""

    pairs: Sequence[PreferencePair]
    blank: bool


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated and how. ``judge`` judges pairs with a model and ``processor``; ``template`` is the judge's, and
    ``sequences`` are read side by side, two of each pair."""

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
    kind = ProbabilityJudge if template.verdict_format == "bare" else GenerativeJudge

    def judge(model: Any, processor: Any, pairs: Sequence[PreferencePair]) -> list[Judgment]:
        sampler = HFSampler(model, processor, batch_size=sequences)
        built = kind(sampler, template, temperature=0.0, max_tokens=max_tokens)
        return built.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=1, seed=0)

    return judge


@contextmanager
def evaluation_mode(trainer: Any) -> Iterator[Any]:
    """Yield the trainer's model as it answers, without dropout and whole on every process; afterwards it, and every random
    generator of torch, is as before."""
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
    """Judge the held-out pairs with ``trainer``'s model, each process its share; return the same in every process.

    Raise DataError where a pair cannot be judged, in any process.
    """
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
    """Return the metrics of judgments, and of those of grey images; a judgment's ``group`` is its prompt.

    A metric that there is nothing of, such as the swap consistency of a judge that knows no order, is left out.
    """
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
