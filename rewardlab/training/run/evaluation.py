"""Held-out pairs: which pairs are evaluated during training and not trained on, and one evaluation of them.

The choice depends on a pair's content alone: every stage holds out the same pairs of one set, in whatever order they come.
Texts of all pairs are read, images only if two pairs ask the same question.

An evaluation is greedy, each pair in both orders, by the package's own decoder and rules of votes, on the trainer's weights.
The processes share the pairs. An answer without a verdict is wrong, and counted as invalid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import torch
from accelerate.utils import gather_object

from rewardlab.config import EvaluationConfig, RLConfig, RMConfig, SFTConfig
from rewardlab.data.pair_table import allowed_columns, allows_without_images, fingerprint_of, light_pairs, select_pairs
from rewardlab.data.rows import with_blank_images
from rewardlab.errors import DataError, MediaError, RewardlabError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.metrics.accuracy import Labeled, invalid_rate, pair_score, position_bias, swap_consistency
from rewardlab.metrics.intervals import mean_estimate
from rewardlab.processes import is_main
from rewardlab.prompts import Template
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.inputs import pairs_of, unreadable_rows
from rewardlab.training.run.parallel import whole_weights
from rewardlab.training.run.preflight import TokenCounter, context_of, processor_of
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, VIDEO_MARK, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.votes import in_order

DEFAULT_ANSWER_TOKENS = 1024  # as of `bench run`
Prompt = tuple[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class HeldOut:
    """``numbers`` are those of ``pairs`` that are left to train on, ``evaluated`` the pairs that are judged while training."""

    pairs: Sequence[PreferencePair]
    numbers: Sequence[int]
    evaluated: Sequence[PreferencePair] = ()

    @property
    def trained(self) -> Sequence[PreferencePair]:
        return self.pairs if len(self.numbers) == len(self.pairs) else select_pairs(self.pairs, self.numbers)

    @property
    def fingerprint(self) -> str:
        """Return what tells a run on these pairs from one on others; "" where nothing is evaluated."""
        return f" {fingerprint_of(self.evaluated)}" if self.evaluated else ""


def prompt_of(pair: PreferencePair) -> Prompt:
    """Return what a pair is about: its question, and the hashes of its images."""
    return pair.question, tuple(hashlib.sha256(image).digest() for image in pair.images)


def rank_of(pair: PreferencePair, seed: int) -> bytes:
    """Return the pair's place in the draw: by its question and responses alone, in whichever order they stand."""
    return hashlib.sha256(repr((seed, pair.question, sorted(pair.responses))).encode("utf-8", "backslashreplace")).digest()


def draw_places(pairs: Sequence[PreferencePair], config: EvaluationConfig) -> list[int]:
    """Return the places of all labelled pairs in the order of the draw."""
    ranks = [(rank_of(pair, config.seed), n) for n, pair in light_pairs(pairs) if pair.preferred is not None]
    return [n for _, n in sorted(ranks)]


def places_about(pairs: Sequence[PreferencePair], prompts: Iterable[Prompt]) -> set[int]:
    """Return the places of the pairs that are about one of ``prompts``."""
    wanted = set(prompts)
    places = _places_asking(pairs, {without_marks(question) for question, _ in wanted})
    return {n for n, prompt in readable_prompts(pairs, places) if prompt in wanted}


def readable_prompts(pairs: Sequence[PreferencePair], places: Iterable[int]) -> Iterator[tuple[int, Prompt]]:
    """Yield (place, prompt) of the pairs at ``places`` whose media can be read."""
    for place in places:
        with suppress(MediaError):  # whoever evaluates or trains on the pair says so
            yield place, prompt_of(pairs[place])


def without_marks(question: str) -> str:
    """Return a question's text alone: the marks of a video become those of its frames once it is read."""
    return question.replace(IMAGE_MARK, "").replace(VIDEO_MARK, "")


def _places_asking(pairs: Sequence[PreferencePair], questions: set[str]) -> list[int]:
    return [n for n, pair in light_pairs(pairs) if without_marks(pair.question) in questions]


def hold_out_fraction(
    pairs: Sequence[PreferencePair], config: EvaluationConfig, fraction: float, *, num_left_out: int = 0
) -> HeldOut:
    """Hold out a fraction of the labelled pairs, at least one and at most ``num_pairs``. ``num_left_out`` unreadable labelled
    pairs count too, so that losing one changes nothing. Raise DataError if none is labelled, or nothing is left."""
    places = draw_places(pairs, config)
    number = min(config.num_pairs, max(1, round(fraction * (len(places) + num_left_out))))
    evaluated = select_pairs(pairs, places[:number])
    prompts = [prompt for _, prompt in readable_prompts(pairs, places[:number])]
    away = {*places[:number], *places_about(pairs, prompts)}
    if not evaluated or len(away) == len(pairs):
        raise DataError(
            f"evaluation.fraction {fraction} of {len(places):,} labelled pairs leaves nothing to "
            f"{'train on' if evaluated else 'evaluate'}; add pairs, or name a held-out set with evaluation.data"
        )
    more = len(away) - len(evaluated)
    others = f"; {more:,} more about the same questions and images are not trained on either" if more else ""
    _say(f"evaluation: {len(evaluated):,} of {len(pairs):,} pairs are held out{others}")
    return HeldOut(pairs, [n for n in range(len(pairs)) if n not in away], evaluated)


def hold_out_file(pairs: Sequence[PreferencePair], others: Sequence[PreferencePair], config: EvaluationConfig) -> HeldOut:
    """Evaluate the labelled pairs of a separate set, at most ``num_pairs``, without those about the training prompts. Raise
    DataError if none is left."""
    places = draw_places(others, config)
    drawn = set(places)
    questions = {without_marks(pair.question) for n, pair in light_pairs(others) if n in drawn}
    trained = {prompt for _, prompt in readable_prompts(pairs, _places_asking(pairs, questions))}
    known = places_about(others, trained) & set(places)
    kept = [n for n in places if n not in known]
    if not kept:
        raise DataError(
            f"{config.data}: {len(known):,} of its {len(places):,} labelled pairs share question and images with "
            "training pairs, and none is left to evaluate; name a held-out set of labelled pairs"
        )
    if known:
        _say(
            f"evaluation: {len(known):,} pairs of {config.data} share question and images with training pairs and are left out"
        )
    return HeldOut(pairs, range(len(pairs)), select_pairs(others, kept[: config.num_pairs]))


def pairs_beside(pairs: Sequence[PreferencePair], data: str, config: SFTConfig | RLConfig) -> Sequence[PreferencePair]:
    """Return the held-out pairs at ``data``; columns that may be in ``pairs`` may be there too. Raise DataError, MediaError."""
    images = Path(config.evaluation.images) if config.evaluation.images else None
    return pairs_of(
        data,
        config.frames,
        config.model,
        images=images,
        allow_columns=allowed_columns(pairs),
        allow_without_images=allows_without_images(pairs),
    )


def hold_out(
    pairs: Sequence[PreferencePair], config: SFTConfig | RLConfig, template: Template, *, num_left_out: int = 0
) -> HeldOut:
    """Return what a config holds out of ``pairs``, or reads from a file; nothing if evaluation is off. ``num_left_out``: as in
    :func:`hold_out_fraction`. Pairs that cannot be decoded or are too long are left out and logged. Raise DataError if nothing
    is left.
    """
    evaluation = config.evaluation
    if evaluation.fraction is not None:
        held_out = hold_out_fraction(pairs, evaluation, evaluation.fraction, num_left_out=num_left_out)
    elif evaluation.data is not None:
        held_out = hold_out_file(pairs, pairs_beside(pairs, evaluation.data, config), evaluation)
    else:
        return HeldOut(pairs, range(len(pairs)))
    return replace(held_out, evaluated=short_enough(decodable(held_out.evaluated), config, template))


def decodable(pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    """Return the pairs whose pictures can be decoded. Raise DataError where none is left."""
    if errors := unreadable_rows(pairs):
        if len(errors) == len(pairs):
            raise DataError(f"no pair to evaluate has readable images; the first error: {errors[0]}")
        first = next(iter(errors.values()))
        _say(f"evaluation: {len(errors):,} of {len(pairs):,} pairs cannot be read, such as: {first}. They are left out")
    return [pairs[number] for number in range(len(pairs)) if number not in errors]


def answer_tokens(config: SFTConfig | RLConfig) -> int:
    """Return the most tokens of a judgment in an evaluation."""
    of_rollouts = config.max_completion_length if isinstance(config, RLConfig) else DEFAULT_ANSWER_TOKENS
    return config.evaluation.max_tokens or of_rollouts


def short_enough(pairs: Sequence[PreferencePair], config: SFTConfig | RLConfig, template: Template) -> Sequence[PreferencePair]:
    """Return the pairs whose longer order leaves room for an answer. Raise DataError where none does."""
    if (limit := config.max_tokens or context_of(config.model)) is None:
        return pairs
    writes = template.verdict_format != "bare" and not isinstance(config, RMConfig)  # else probabilities or numbers are read
    counter, room = TokenCounter(processor_of(config)), answer_tokens(config) if writes else 0
    kept = [pair for pair in pairs if max(counter.sample(pair, o, template, room=room).total for o in BOTH_ORDERS) <= limit]
    if not kept:
        raise DataError(f"every pair to evaluate is longer than {limit:,} tokens; lower evaluation.max_tokens or pixels.max")
    if len(kept) < len(pairs):
        _say(f"evaluation: {len(pairs) - len(kept):,} of {len(pairs):,} pairs are longer than {limit:,} tokens and left out")
    return kept


def _say(text: str) -> None:
    if is_main():
        log_line(text)


DEFAULT_SEQUENCES = 64
JudgePairs = Callable[[Any, Any, Sequence[PreferencePair]], list[Judgment]]  # of a model, its processor, and pairs


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
    kind = ProbabilityJudge if template.verdict_format == "bare" else GenerativeJudge

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
