"""How many tokens every sample will be, before a run starts: by the processor's own count, from the sizes of images alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from rewardlab.config import TrainConfig
from rewardlab.data.files import write_atomic
from rewardlab.errors import DataError
from rewardlab.models.attention import check_attention
from rewardlab.models.families import count_image_tokens, count_text_tokens
from rewardlab.models.loading import load_config_of, load_processor, set_pixels
from rewardlab.processes import is_main
from rewardlab.prompts import Template, build_messages
from rewardlab.reporting.progress import bar, log_line
from rewardlab.samplers.hf import chat_of, special_tokens
from rewardlab.training.run.folder import CONFIG, refuse_finished
from rewardlab.types import BOTH_ORDERS, Message, Order, PreferencePair

TOO_LONG = "too_long.jsonl"


@dataclass(frozen=True)
class SampleTokens:
    """Tokens of one sample: of its text (prompt, and the answer it is trained on), of its images, and left for an answer."""

    pair_id: str
    text: int
    images: int
    num_images: int
    answer: int

    @property
    def total(self) -> int:
        return self.text + self.images + self.answer


class TokenCounter:
    """Counts without decoding an image: its size is in its first bytes."""

    def __init__(self, processor: Any) -> None:
        self._processor, self._specials = processor, special_tokens(processor.tokenizer)
        self._by_size: dict[tuple[int, int], int] = {}

    def images(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Count the tokens of images of (height, width) px."""
        all_sizes = list(sizes)
        new = sorted({size for size in all_sizes if size not in self._by_size})
        if new:
            self._by_size |= dict(zip(new, count_image_tokens(self._processor, new), strict=True))
        return sum(self._by_size[size] for size in all_sizes)

    def text(self, prompt: Sequence[Message], answer: str = "") -> int:
        """Count the tokens of a prompt without its images' own (the marks around them count) and of the answer behind it."""
        chat = chat_of(prompt, self._specials)
        text = self._processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return count_text_tokens(self._processor, text, answer, sum(len(message.images) for message in prompt))

    def sample(
        self, pair: PreferencePair, order: Order, template: Template, *, answer: str = "", room: int = 0
    ) -> SampleTokens:
        """Count the tokens of a pair in one order; ``room`` is what a rollout may add."""
        prompt = build_messages(pair, order=order, template=template)
        images = [image for message in prompt for image in message.images]
        return SampleTokens(pair.pair_id, self.text(prompt, answer), self.images(map(_size, images)), len(images), room)


def _size(image: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(image)) as opened:
        return opened.height, opened.width


def processor_of(config: TrainConfig) -> Any:
    """Return the processor of what is trained, with the config's pixel budget."""
    processor = load_processor(config.model)
    if config.pixels:
        set_pixels(processor, config.pixels)
    return processor


def context_of(model: str) -> int | None:
    """Return how many tokens a checkpoint (of an adapter, its base) allows, if it says. Raise CheckpointError."""
    limit = getattr(load_config_of(model).get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None


def drop_too_long(
    pairs: Sequence[PreferencePair],
    config: TrainConfig,
    template: Template,
    out: Path,
    *,
    answer: Callable[[PreferencePair], str] = lambda pair: "",
    room: int = 0,
) -> list[PreferencePair]:
    """Return the pairs that fit. Longer than ``config.max_tokens`` they are dropped, listed in ``out/too_long.jsonl``, and
    logged.

    Each is counted in the order that makes it longer. Where no ``max_tokens`` is given, raise DataError for a pair longer than
    the model's context: it could not be read, and cutting it could cut an image. Also where none fits. Raise ConfigError for a
    finished run, and for an attention that cannot be.
    """
    refuse_finished(out)
    check_attention(config.attn_implementation)
    limit = config.max_tokens or context_of(config.model)
    if limit is None:
        return list(pairs)
    counter, kept, dropped = TokenCounter(processor_of(config)), [], []
    with bar("tokens", len(pairs)) as advance:
        for pair in pairs:
            counts = [counter.sample(pair, order, template, answer=answer(pair), room=room) for order in BOTH_ORDERS]
            tokens = max(counts, key=lambda count: count.total)
            kept.append(pair) if tokens.total <= limit else dropped.append(tokens)
            advance(1)
    if not dropped:
        return kept
    worst = max(dropped, key=lambda count: count.total)
    message = (
        f"{len(dropped):,} of {len(pairs):,} samples are longer than {limit:,} tokens; the longest, {worst.pair_id}, has "
        f"{worst.text:,} of text, {worst.images:,} of {worst.num_images} images and {worst.answer:,} for the answer"
    )
    if config.max_tokens is None or not kept:
        cure = "raise max_tokens" if config.max_tokens else "set max_tokens to have them left out"
        raise DataError(f"{message}. Lower pixels.max or frames, or {cure}")
    if is_main() and not (out / CONFIG).exists():  # a run that is gone on with, or refused, has its list
        write_atomic(out / TOO_LONG, "".join(json.dumps({**asdict(count), "total": count.total}) + "\n" for count in dropped))
        log_line(f"{message}: left out, see {out / TOO_LONG}")
    return kept
