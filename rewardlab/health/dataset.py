"""The data of a planned run: how many pairs it trains on and holds out, and how long prompts, answers and pictures are.

Lengths are counted in a sample of the data, or assumed if there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from rewardlab.config import DPOConfig, MethodConfig, PRMConfig, RLConfig, RMConfig, SFTConfig, TrainConfig
from rewardlab.data.pair_table import light_pairs, pair_facts, select_pairs
from rewardlab.data.rows import media_of
from rewardlab.data.set_checks import tie_note
from rewardlab.errors import CheckpointError
from rewardlab.health.shapes import ANSWER_TOKENS, MEGAPIXEL, TEXT_TOKENS, PictureShape, picture_shape
from rewardlab.models.architectures import config_of
from rewardlab.models.checkpoints import load_template_for
from rewardlab.prompts import Template, build_messages, load_template
from rewardlab.training.rl import hard_pairs
from rewardlab.training.run.held_out import HeldOut, hold_out_file, hold_out_fraction, pairs_beside
from rewardlab.training.run.preflight import TokenCounter, image_size, processor_of
from rewardlab.training.run.runner import count_steps
from rewardlab.types import BOTH_ORDERS, Message, PreferencePair, choice_of
from rewardlab.verdicts.parse import verdict_label

NUM_SPREAD, NUM_LONGEST = 192, 64  # pairs that are read: evenly spread, and those with the longest texts and most pictures
BYTES_PER_TOKEN = 4.0  # of text, if there is no tokenizer
STORED_MEGAPIXELS = 1.0  # of a picture on disk, before it is reduced to pixels.max


@dataclass(frozen=True)
class Lengths:
    """Sizes of samples. ``prompt`` (pictures included) and ``answer``: tokens of the longest ones. ``pictures`` and
    ``most_pictures``: mean and maximum per prompt. ``picture``: the mean picture as the model sees it, ``megapixels``: as it is
    stored. ``source``: where these come from, in words; ``is_counted``: from data."""

    prompt: int
    answer: int
    pictures: float
    most_pictures: float
    picture: PictureShape
    megapixels: float
    source: str
    is_counted: bool


@dataclass(frozen=True)
class HeldOutData:
    """The number of pairs that are evaluated, and the lengths of their prompts."""

    pairs: int
    lengths: Lengths


@dataclass(frozen=True)
class DataFacts:
    """What is known of a run's data: its ``pairs``, the ``sequences`` of an epoch and the optimizer ``steps`` (None for a PRM,
    whose steps depend on texts), a ``sample`` of the pairs that are trained on, their ``lengths``, the held-out pairs."""

    pairs: Sequence[PreferencePair] = ()
    sequences: int | None = None
    steps: int | None = None
    sample: DataSample | None = None
    lengths: Lengths | None = None
    held_out: HeldOutData | None = None


@dataclass(frozen=True)
class PairTokens:
    """Tokens of a pair's prompt in its longer order, of its answer and of each picture; megapixels of each stored picture."""

    prompt: int
    answer: int
    pictures: tuple[int, ...]
    megapixels: tuple[float, ...]


@dataclass(frozen=True)
class DataSample:
    """Some pairs of a data set: evenly ``spread`` ones and the ``longest``. ``room``: tokens left for an answer; ``limit``: the
    most tokens a sample may have; ``is_exact``: counted by the tokenizer instead of by bytes."""

    spread: Sequence[PairTokens]
    longest: Sequence[PairTokens]
    room: int
    limit: int | None
    is_exact: bool

    @property
    def totals(self) -> list[int]:
        """Return the tokens of each pair with its answer, or the room for one; the spread ones first."""
        return [pair.prompt + pair.answer + self.room for pair in (*self.spread, *self.longest)]

    @property
    def num_too_long(self) -> int:
        return sum(total > self.limit for total in self.totals) if self.limit else 0

    @property
    def median(self) -> int:
        return round(median(self.totals[: len(self.spread)]))

    def lengths(self, architecture: Any) -> Lengths | None:
        """Return the lengths of the pairs within ``limit``; None if there is none."""
        every, spread = self._within_limit((*self.spread, *self.longest)), self._within_limit(self.spread)
        if not every:
            return None
        spread = spread or every
        with_pictures = spread if any(pair.pictures for pair in spread) else every
        tokens = [number for pair in with_pictures for number in pair.pictures]
        stored = [size for pair in with_pictures for size in pair.megapixels]
        pixels = round(fmean(tokens) * pixels_per_token(architecture)) if tokens else 0
        return Lengths(
            prompt=max(pair.prompt for pair in every),
            answer=max(pair.answer for pair in every),
            pictures=fmean(len(pair.pictures) for pair in spread),
            most_pictures=max(len(pair.pictures) for pair in every),
            picture=picture_shape(architecture, pixels) if tokens else PictureShape(0, 0, 0, 0),
            megapixels=fmean(stored) if stored else 0.0,
            source=f"{'counted' if self.is_exact else 'by bytes'} in {len(every):,} pairs of the data",
            is_counted=True,
        )

    def _within_limit(self, pairs: Sequence[PairTokens]) -> list[PairTokens]:
        return [pair for pair in pairs if not self.limit or pair.prompt + pair.answer + self.room <= self.limit]


def assume_lengths(architecture: Any, config: TrainConfig, prompt_tokens: int | None = None) -> Lengths:
    """Return the lengths assumed without data: a prompt has ``prompt_tokens``, by default 768 of text and one picture of
    ``pixels.max`` (else of a megapixel); a supervised answer has 1,024."""
    picture = picture_shape(architecture, config.pixels.max if config.pixels else MEGAPIXEL)
    source = f"assumed: {TEXT_TOKENS} of text and a picture of {picture.pixels / 1e6:.2f} MP" if picture.tokens else "assumed"
    return Lengths(
        prompt=prompt_tokens or TEXT_TOKENS + picture.tokens,
        answer=ANSWER_TOKENS,
        pictures=1.0,
        most_pictures=1.0,
        picture=picture,
        megapixels=STORED_MEGAPIXELS,
        source="given" if prompt_tokens else source,
        is_counted=False,
    )


def pixels_per_token(architecture: Any) -> int:
    """Return the pixels of a picture behind each of its tokens; 1 for a family that shows all pictures at one size."""
    vision = getattr(architecture, "vision_config", None)
    merge = getattr(vision, "spatial_merge_size", None)
    return (vision.patch_size * merge) ** 2 if vision is not None and merge else 1


# The pairs of a run.


def template_of(config: TrainConfig) -> Template:
    """Return the template of a run; RL takes that of the checkpoint it starts from."""
    is_rl = isinstance(config, RLConfig)
    return load_template_for(config.model, config.template) if is_rl else load_template(config.template)


def data_facts(pairs: Sequence[PreferencePair], config: TrainConfig) -> DataFacts:
    """Return the facts of a data set under a config; a sample of the pairs is read. Raise DataError or MediaError."""
    held_out = held_out_of(pairs, config)
    trained = trained_pairs(config, held_out.trained)
    sequences = num_sequences(config, len(trained))
    architecture = config_of(config.model)
    writes = type(config) is SFTConfig or (isinstance(config, RMConfig) and config.explain_weight > 0)
    sample = _sample(config, architecture, trained, answers=writes)
    evaluated = _sample(config, architecture, held_out.evaluated, answers=False)
    evaluated_lengths = evaluated.lengths(architecture) if evaluated else None
    return DataFacts(
        pairs=pairs,
        sequences=sequences,
        steps=None if sequences is None else count_steps(config, sequences),
        sample=sample,
        lengths=sample.lengths(architecture) if sample else None,
        held_out=HeldOutData(len(held_out.evaluated), evaluated_lengths) if evaluated_lengths else None,
    )


def held_out_of(pairs: Sequence[PreferencePair], config: TrainConfig) -> HeldOut:
    """Return which pairs are evaluated instead of trained on. Raise DataError if none is left."""
    if isinstance(config, SFTConfig | RLConfig):
        evaluation = config.evaluation
        if evaluation.fraction is not None:
            return hold_out_fraction(pairs, evaluation, evaluation.fraction)
        if evaluation.data is not None:
            return hold_out_file(pairs, pairs_beside(pairs, evaluation.data, config), evaluation)
    return HeldOut(pairs, range(len(pairs)))


def trained_pairs(config: TrainConfig, pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    """Return the pairs a stage trains on: those with a judgment, a label, or a tag of difficulty. Raise DataError."""
    if isinstance(config, MethodConfig | PRMConfig) and not isinstance(config, RLConfig):
        return pairs
    tie_note(sum(facts.tied for facts in pair_facts(pairs)), len(pairs))
    if isinstance(config, RLConfig):
        return hard_pairs(pairs, config)
    needs_label = _trains_on_labels(config)
    facts = enumerate(pair_facts(pairs))
    return select_pairs(pairs, [n for n, fact in facts if (fact.preferred is not None if needs_label else fact.judged)])


def _trains_on_labels(config: TrainConfig) -> bool:
    return isinstance(config, RMConfig | DPOConfig) or load_template(config.template).verdict_format == "bare"


def num_sequences(config: TrainConfig, num_pairs: int) -> int | None:
    """Return the sequences of an epoch over so many trained pairs; None where they are made of steps or votes."""
    if isinstance(config, PRMConfig | DPOConfig):
        return None
    if isinstance(config, MethodConfig):
        orders = 2 if isinstance(config, RLConfig) and config.both_orders else 1
        return num_pairs * orders * config.group_size * config.iterations
    return num_pairs * (2 if _trains_on_labels(config) else 1)


# Tokens of some pairs.


def _sample(config: TrainConfig, architecture: Any, pairs: Sequence[PreferencePair], *, answers: bool) -> DataSample | None:
    """Return the tokens of some pairs; None without pairs or for an unknown model. ``answers``: the pairs' judgments, or their
    verdicts if the template has verdicts alone, are trained on.

    Pictures are measured, not decoded. Without the model's tokenizer text is counted by its bytes.
    """
    if architecture is None or not pairs:
        return None
    try:
        tokenizer: TokenCounter | None = TokenCounter(processor_of(config))
    except CheckpointError:
        tokenizer = None
    counter = PairCounter(config, template_of(config), architecture, tokenizer, answers=answers)
    spread = spread_numbers(len(pairs))
    light = ((n, pair) for n, pair in light_pairs(pairs) if n not in spread)
    longest = heapq.nlargest(NUM_LONGEST, light, key=lambda item: counter.bound(item[1]))
    return DataSample(
        [counter.tokens(pairs[n]) for n in spread],
        [counter.tokens(pairs[n]) for n, _ in longest],
        config.max_completion_length if isinstance(config, MethodConfig) else 0,
        config.max_tokens,
        tokenizer is not None,
    )


def spread_numbers(number: int) -> range:
    """Return evenly spread indices of so many pairs."""
    return range(0, number, max(1, number // NUM_SPREAD))


class PairCounter:
    """Counts the tokens of pairs: by the model's processor (``tokenizer``), or without it by bytes and pixels."""

    def __init__(
        self, config: TrainConfig, template: Template, architecture: Any, tokenizer: TokenCounter | None, *, answers: bool
    ) -> None:
        self._pixels, self._template, self._answers = config.pixels, template, answers
        self._architecture, self._tokenizer = architecture, tokenizer

    def bound(self, pair: PreferencePair) -> float:
        """Return about the most tokens of a pair, whose media need not be read."""
        text = "".join((pair.question, *pair.responses, *pair.others, pair.judgment if self._answers else ""))
        most = picture_shape(self._architecture, self._pixels.max if self._pixels else MEGAPIXEL).tokens
        return _text_tokens(text) + most * len(media_of(pair))

    def tokens(self, pair: PreferencePair) -> PairTokens:
        """Return the tokens of a pair in its longer order. Raise MediaError."""
        answer = pair.judgment if self._answers else ""
        if self._answers and self._template.verdict_format == "bare" and pair.preferred is not None:
            answer = verdict_label(choice_of(pair.preferred, pair.order))
        orders = (self._tokens(build_messages(pair, order=order, template=self._template), answer) for order in BOTH_ORDERS)
        return max(orders, key=lambda tokens: tokens.prompt)

    def _tokens(self, prompt: Sequence[Message], answer: str) -> PairTokens:
        sizes = [image_size(image) for message in prompt for image in message.images]
        if self._tokenizer is None:
            text = "".join(part.text for message in prompt for part in message.parts if part.image is None)
            num_text, num_answer = _text_tokens(text), _text_tokens(answer)
            pictures = tuple(map(self._picture_tokens, sizes))
        else:
            num_text, both = self._tokenizer.texts([self._tokenizer.render(prompt)] * 2, ["", answer], [len(sizes)] * 2)
            num_answer, pictures = both - num_text, tuple(self._tokenizer.images([size]) for size in sizes)
        megapixels = tuple(height * width / 1e6 for height, width in sizes)
        return PairTokens(num_text + sum(pictures), num_answer, pictures, megapixels)

    def _picture_tokens(self, size: tuple[int, int]) -> int:
        pixels, limits = size[0] * size[1], self._pixels
        return picture_shape(self._architecture, min(max(pixels, limits.min), limits.max) if limits else pixels).tokens


def _text_tokens(text: str) -> int:
    return round(len(text.encode(errors="surrogatepass")) / BYTES_PER_TOKEN)
