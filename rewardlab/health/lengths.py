"""How long prompts and answers are and how large their pictures: by assumption, or counted in a part of the data."""

from __future__ import annotations

import heapq
import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from PIL import Image

from rewardlab.config import MethodConfig, TrainConfig
from rewardlab.data.pair_table import light_pairs
from rewardlab.data.rows import media_of
from rewardlab.health.shapes import ANSWER_TOKENS, MEGAPIXEL, TEXT_TOKENS, PictureShape, picture_shape
from rewardlab.prompts import Template, build_messages
from rewardlab.training.run.preflight import TokenCounter
from rewardlab.types import BOTH_ORDERS, PreferencePair, choice_of
from rewardlab.verdicts.parse import verdict_label

NUM_SPREAD, NUM_LONGEST = 192, 64  # pairs that are read: all over the set, and those with the longest texts and most pictures
BYTES_PER_TOKEN = 4.0  # of text, where there is no tokenizer to count with
STORED_MEGAPIXELS = 1.0  # of a picture on disk, before it is reduced to pixels.max


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts, pictures included, and of the answers that are learnt: the longest and the mean.

    ``pictures`` of a prompt in the mean, ``most_pictures`` of the one with most, ``with_pictures``: the share of prompts with
    any; ``picture`` as it is shown, ``megapixels`` as it is stored, both in the mean; ``png``: the share of pictures that are
    PNG, None where that is not known. ``source``: where all this is from, in words. ``is_counted``: from data.
    """

    prompt: int
    mean_prompt: float
    answer: int
    mean_answer: float
    pictures: float
    most_pictures: float
    with_pictures: float
    picture: PictureShape
    megapixels: float
    png: float | None
    source: str
    is_counted: bool


def assume_lengths(architecture: Any, config: TrainConfig, prompt_tokens: int | None = None) -> Lengths:
    """Return what is assumed without data: a prompt has one picture of ``pixels.max`` (of a megapixel where that is not set)
    and 768 tokens of text, unless ``prompt_tokens`` says its length; an answer that is learnt has 1,024."""
    picture = picture_shape(architecture, config.pixels.max if config.pixels else MEGAPIXEL)
    prompt = prompt_tokens or TEXT_TOKENS + picture.tokens
    source = f"assumed: {TEXT_TOKENS} of text and a picture of {picture.pixels / 1e6:.2f} MP" if picture.tokens else "assumed"
    if prompt_tokens:
        source = "as asked"
    return Lengths(
        prompt=prompt,
        mean_prompt=prompt,
        answer=ANSWER_TOKENS,
        mean_answer=ANSWER_TOKENS,
        pictures=1.0,
        most_pictures=1.0,
        with_pictures=1.0,
        picture=picture,
        megapixels=STORED_MEGAPIXELS,
        png=None,
        source=source,
        is_counted=False,
    )


@dataclass(frozen=True)
class PairTokens:
    """Tokens of one pair: of its prompt in the longer order, its answer, its pictures; and the size in megapixels and the
    format of each picture as it is stored."""

    prompt: int
    answer: int
    pictures: tuple[int, ...]
    megapixels: tuple[float, ...]
    formats: tuple[str, ...]


@dataclass(frozen=True)
class DataSample:
    """``spread``: pairs from all over a set; ``longest``: those with the longest texts and most pictures. ``room`` is left for
    an answer, ``limit`` the most tokens that a sample may have; ``is_exact``: counted by the tokenizer, not by bytes."""

    spread: Sequence[PairTokens]
    longest: Sequence[PairTokens]
    room: int
    limit: int | None
    is_exact: bool

    @property
    def totals(self) -> list[int]:
        """Return the tokens of each pair with its answer, or the room for one; those from all over the set first."""
        return [pair.prompt + pair.answer + self.room for pair in (*self.spread, *self.longest)]

    @property
    def num_too_long(self) -> int:
        return sum(total > self.limit for total in self.totals) if self.limit else 0

    @property
    def median(self) -> int:
        return round(median(self.totals[: len(self.spread)]))

    def kept(self, pairs: Sequence[PairTokens]) -> list[PairTokens]:
        """Return the pairs that are not too long."""
        return [pair for pair in pairs if not self.limit or pair.prompt + pair.answer + self.room <= self.limit]

    def lengths(self, architecture: Any, config: TrainConfig) -> Lengths | None:
        """Return the lengths of the pairs that are not too long; None where there is none."""
        every, spread = self.kept((*self.spread, *self.longest)), self.kept(self.spread)
        if not every:
            return None
        spread = spread or every
        of_pictures = spread if any(pair.pictures for pair in spread) else every
        picture_tokens = [tokens for pair in of_pictures for tokens in pair.pictures]
        stored = [size for pair in of_pictures for size in pair.megapixels]
        formats = [name for pair in of_pictures for name in pair.formats]
        none = PictureShape(0, 0, 0, 0)
        pixels = round(fmean(picture_tokens) * pixels_per_token(architecture)) if picture_tokens else 0
        return Lengths(
            prompt=max(pair.prompt for pair in every),
            mean_prompt=fmean(pair.prompt for pair in spread),
            answer=max(pair.answer for pair in every),
            mean_answer=fmean(pair.answer for pair in spread),
            pictures=fmean(len(pair.pictures) for pair in spread),
            most_pictures=max(len(pair.pictures) for pair in every),
            with_pictures=fmean(bool(pair.pictures) for pair in spread),
            picture=picture_shape(architecture, pixels) if picture_tokens else none,
            megapixels=fmean(stored) if stored else 0.0,
            png=sum(name == "PNG" for name in formats) / len(formats) if formats else None,
            source=f"{'counted' if self.is_exact else 'by bytes'} in {len(every):,} pairs of the data",
            is_counted=True,
        )


def pixels_per_token(architecture: Any) -> int:
    """Return the pixels of a picture behind each of its tokens; 1 of a family that shows all pictures at one size."""
    vision = getattr(architecture, "vision_config", None)
    merge = getattr(vision, "spatial_merge_size", None)
    return (vision.patch_size * merge) ** 2 if vision is not None and merge else 1


def count_sample(
    pairs: Sequence[PreferencePair],
    config: TrainConfig,
    template: Template,
    architecture: Any,
    counter: TokenCounter | None,
    *,
    room: int,
    answers: bool,
) -> DataSample:
    """Return the tokens of some of ``pairs``, which are read, pictures' sizes included; no picture is decoded.

    ``counter`` None: text is counted by its bytes, pictures by their sizes. ``answers``: the judgment of a pair, or its verdict
    where the template asks for that alone, is learnt; ``room`` tokens are left for one that is not. Raise DataError and
    MediaError.
    """
    number = len(pairs)
    spread = range(0, number, max(1, number // NUM_SPREAD))
    bound = picture_shape(architecture, config.pixels.max if config.pixels else MEGAPIXEL).tokens

    def size(item: tuple[int, PreferencePair]) -> float:
        pair = item[1]
        texts = (pair.question, *pair.responses, pair.judgment if answers else "")
        return _text_tokens("".join(texts)) + bound * len(media_of(pair))

    longest = [n for n, _ in heapq.nlargest(NUM_LONGEST, light_pairs(pairs), key=size) if n not in spread]

    def count(n: int) -> PairTokens:
        return _pair_tokens(pairs[n], config, template, architecture, counter, answers=answers)

    limit = config.max_tokens
    return DataSample([count(n) for n in spread], [count(n) for n in longest], room, limit, counter is not None)


def answer_room(config: TrainConfig) -> int:
    """Return the tokens that are left for an answer that is not in the data: of a rollout."""
    return config.max_completion_length if isinstance(config, MethodConfig) else 0


def _text_tokens(text: str) -> int:
    return round(len(text.encode(errors="surrogatepass")) / BYTES_PER_TOKEN)


def _pair_tokens(
    pair: PreferencePair,
    config: TrainConfig,
    template: Template,
    architecture: Any,
    counter: TokenCounter | None,
    *,
    answers: bool,
) -> PairTokens:
    answer = pair.judgment if answers else ""
    if answers and template.verdict_format == "bare" and pair.preferred is not None:
        answer = verdict_label(choice_of(pair.preferred, pair.order))
    counts = []
    for order in BOTH_ORDERS:
        prompt = build_messages(pair, order=order, template=template)
        images = [image for message in prompt for image in message.images]
        opened = [_facts(image) for image in images]
        if counter is None:
            text = "".join(part.text for message in prompt for part in message.parts if part.image is None)
            of_text, of_answer = _text_tokens(text), _text_tokens(answer)
            picture_tokens = [_shown_tokens(size, config, architecture) for size, _ in opened]
        else:
            rendered = counter.render(prompt)
            of_text, both = counter.texts([rendered] * 2, ["", answer], [len(images)] * 2)
            of_answer, picture_tokens = both - of_text, [counter.images([size]) for size, _ in opened]
        megapixels = tuple(height * width / 1e6 for (height, width), _ in opened)
        formats = tuple(name for _, name in opened)
        counts.append(PairTokens(of_text + sum(picture_tokens), of_answer, tuple(picture_tokens), megapixels, formats))
    return max(counts, key=lambda tokens: tokens.prompt)


def _shown_tokens(size: tuple[int, int], config: TrainConfig, architecture: Any) -> int:
    pixels = size[0] * size[1]
    if config.pixels:
        pixels = min(max(pixels, config.pixels.min), config.pixels.max)
    return picture_shape(architecture, pixels).tokens


def _facts(image: bytes) -> tuple[tuple[int, int], str]:
    """Return ((height, width) in px, format) of an encoded picture."""
    with Image.open(io.BytesIO(image)) as opened:
        return (opened.height, opened.width), str(opened.format)
