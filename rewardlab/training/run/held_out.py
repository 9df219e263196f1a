"""Held-out pairs: which pairs are evaluated during training and not trained on.

The choice depends on a pair's content alone: every stage holds out the same pairs of one set, in whatever order they come.
Texts of all pairs are read, images only if two pairs ask the same question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rewardlab.config import EvaluationConfig, RLConfig, RMConfig, SFTConfig
from rewardlab.data.pair_table import allowed_columns, allows_without_images, fingerprint_of, light_pairs, select_pairs
from rewardlab.errors import DataError, MediaError
from rewardlab.processes import is_main
from rewardlab.prompts import Template
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.inputs import pairs_of, unreadable_rows
from rewardlab.training.run.preflight import TokenCounter, context_of, processor_of, room_between_turns
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, VIDEO_MARK, PreferencePair

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
    counter = TokenCounter(processor_of(config))
    room = template.num_turns * answer_tokens(config) + (template.num_turns - 1) * room_between_turns(config, template)
    room = room if writes else 0
    kept = [pair for pair in pairs if max(counter.sample(pair, o, template, room=room).total for o in BOTH_ORDERS) <= limit]
    if not kept:
        raise DataError(f"every pair to evaluate is longer than {limit:,} tokens; lower evaluation.max_tokens or pixels.max")
    if len(kept) < len(pairs):
        _say(f"evaluation: {len(pairs) - len(kept):,} of {len(pairs):,} pairs are longer than {limit:,} tokens and left out")
    return kept


def _say(text: str) -> None:
    if is_main():
        log_line(text)
