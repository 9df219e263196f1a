"""Before a run: how many tokens its samples have, and which are too long and left out.

Tokens are counted by the processor's own rules, from the sizes of images alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from rewardlab.config import TrainConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import fingerprint_of, light_pairs, pair_facts, select_pairs
from rewardlab.data.rows import media_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.attention import check_attention
from rewardlab.models.families import (
    count_image_tokens,
    count_text_tokens,
    has_token_formula,
    most_image_tokens,
    text_before,
)
from rewardlab.models.loading import load_config_of, load_processor, set_pixels
from rewardlab.models.model_config import max_positions
from rewardlab.processes import is_main, num_processes, process_index
from rewardlab.prompts import Template, build_messages
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.reporting.progress import Advance, bar, log_line
from rewardlab.samplers.hf import chat_of, special_tokens, thinking_opening, user_turn
from rewardlab.training.run.capabilities import refuse_incapable
from rewardlab.training.run.folder import has_begun, refuse_finished
from rewardlab.types import BOTH_ORDERS, Message, Order, PreferencePair
from rewardlab.verdicts.parse import continuation

TOO_LONG, COUNTS = "too_long.jsonl", "token_counts"
WAIT_S = 3600  # for the slowest process
AT_ONCE = 512  # texts that a tokenizer is given together
BYTES_OF_TOKEN = 3  # in most texts it is longer; where it is not, a text is counted whole
NEAR = 64  # tokens by which the two orders of a pair, or a text and the same text in one piece, may differ


def processor_of(config: TrainConfig) -> Any:
    """Return the processor of what is trained, with the config's pixel budget."""
    processor = load_processor(config.model)
    if config.pixels:
        set_pixels(processor, config.pixels)
    return processor


def context_of(model: str) -> int | None:
    """Return how many tokens a checkpoint (of an adapter, its base) allows, if it says. Raise CheckpointError."""
    return max_positions(load_config_of(model).get_text_config().to_dict())


def drop_too_long(
    pairs: Sequence[PreferencePair], config: TrainConfig, template: Template, out: Path, *, room: int = 0
) -> Sequence[PreferencePair]:
    """Return the pairs that fit, as :func:`numbers_that_fit` says; ``room`` is what a rollout may add, in tokens."""
    numbers = numbers_that_fit(pairs, config, template, out, room=room)
    return pairs if len(numbers) == len(pairs) else select_pairs(pairs, numbers)


def room_between_turns(config: TrainConfig, template: Template) -> int:
    """Return the most tokens between two turns of a judgment, 0 for one turn. Raise ConfigError for looks with a model whose
    images have an unknown number of tokens."""
    if template.turns is None:
        return 0
    processor = processor_of(config)
    tokens, images = len(user_turn(processor, template.followup)[0]), most_image_tokens(processor) if template.looks else 0
    if images is None:
        raise ConfigError(f"{config.model}: how many tokens an image has at most is unknown; use a template without looks")
    return tokens + images


def split_answer(pair: PreferencePair, answer: str, template: Template) -> list[str]:
    """Return the turns of a judgment of a pair. Raise DataError for one that is not the template's."""
    try:
        return template.turns.split(answer) if template.turns else [answer]
    except ValueError as error:
        raise DataError(f"{pair.pair_id}: its judgment is none for template {template.name}: {error}") from error


def numbers_that_fit(
    pairs: Sequence[PreferencePair],
    config: TrainConfig,
    template: Template,
    out: Path,
    *,
    answer: Callable[[PreferencePair], str] = lambda pair: "",
    room: int = 0,
    between: int = 0,
) -> Sequence[int]:
    """Return which pairs fit, each in its longer order, as :func:`short_samples` says; ``between`` is what two turns of an
    answer may have between them, in tokens. Raise ConfigError for a finished run, DataError for an answer that is not the
    template's."""
    refuse_finished(out)

    def room_of(pair: PreferencePair) -> int:
        return room + (between * (len(split_answer(pair, answer(pair), template)) - 1) if between else 0)

    def candidates(counter: TokenCounter, limit: int, advance: Advance) -> Iterator[Candidate]:
        for number, pair in light_pairs(pairs):
            if number % num_processes() == process_index():
                text = counter.render(build_messages(pair, order=Order.GIVEN, template=template)) + counter.learnt(answer(pair))
                yield from counter.candidate(number, pair, text, limit - room_of(pair))
                advance(num_processes())

    def count(counter: TokenCounter, number: int) -> SampleTokens:
        pair = pairs[number]
        counts = [counter.sample(pair, order, template, answer=answer(pair), room=room_of(pair)) for order in BOTH_ORDERS]
        return max(counts, key=lambda count: count.total)

    names = [facts.pair_id for facts in pair_facts(pairs)]  # which of a set
    key = (fingerprint_of(pairs), names, template.hash, room, *([between] if between else []))
    return short_samples(len(pairs), config, out / TOO_LONG, key, candidates, count)


@dataclass(frozen=True)
class Candidate:
    """A sample whose bytes alone do not show that it is short enough. ``allowed``: the tokens its text may have."""

    number: int
    text: str
    allowed: float


def short_samples(
    number: int,
    config: TrainConfig,
    file: Path,
    key: object,
    candidates: Callable[[TokenCounter, int, Advance], Iterator[Candidate]],
    count: Callable[[TokenCounter, int], SampleTokens],
    what: str = "samples",
) -> Sequence[int]:
    """Return which of ``number`` samples fit. Those longer than ``config.max_tokens`` are listed in ``file`` and logged. Raise
    DataError if none fits, and without ``max_tokens`` for a sample longer than the model's context: cutting could cut an image.
    Raise ConfigError for an unavailable attention, and a model that cannot be trained (:func:`refuse_incapable`).

    ``candidates`` yields this process's samples that may be longer than a limit; only these are counted, by ``count``. ``key``
    identifies the samples, so that a resumed run of several processes does not count them again.
    """
    check_attention(config.attn_implementation)
    refuse_incapable(config)
    limit, out = config.max_tokens or context_of(config.model), file.parent
    if limit is None or not number:
        return range(number)
    described = repr((key, config.model, config.pixels, config.frames, limit))
    folder = out / COUNTS / hashlib.sha256(described.encode(errors="surrogatepass")).hexdigest()[:16]

    def count_long() -> dict[int, SampleTokens]:
        with bar("tokens", number) as advance:
            counter = TokenCounter(processor_of(config))
            return dict(_longer(candidates(counter, limit, advance), limit, counter, count))

    dropped = gather_counts(count_long, folder)
    kept = [n for n in range(number) if n not in dropped]
    is_listed = is_main() and not has_begun(out)  # a run that is gone on with, or refused, has its list
    if not dropped:
        if is_listed and file.exists():
            file.unlink()  # of a start that failed, with other settings
        return kept
    worst = max(dropped.values(), key=lambda count: count.total)
    message = (
        f"{len(dropped):,} of {number:,} {what} are longer than {limit:,} tokens; the longest, {worst.pair_id}, has "
        f"{worst.text:,} of text, {worst.images:,} of {worst.num_images} images and {worst.answer:,} for the answer"
    )
    if config.max_tokens is None or not kept:
        cure = "raise max_tokens" if config.max_tokens else "set max_tokens to have them left out"
        raise DataError(f"{message}. Lower pixels.max or frames, or {cure}")
    if is_listed:
        rows = (json.dumps({**asdict(dropped[n]), "total": dropped[n].total}) + "\n" for n in sorted(dropped))
        write_atomic(file, "".join(rows))
        log_line(f"{message}: left out, see {file}")
    return kept


def _longer(
    candidates: Iterator[Candidate], limit: int, counter: TokenCounter, count: Callable[[TokenCounter, int], SampleTokens]
) -> Iterator[tuple[int, SampleTokens]]:
    """Yield (number, tokens) of the candidates longer than ``limit``. Cheap bounds exclude most: a token is at least a byte, an
    image has a maximum, a text has at most its words' tokens. Texts of the others are counted as far as needed, and only
    samples that may still be too long are read from disk.
    """

    def those_longer(candidates: Sequence[Candidate], fits: Sequence[bool]) -> Iterator[tuple[int, SampleTokens]]:
        unclear = (candidate.number for candidate, fit in zip(candidates, fits, strict=True) if not fit)
        counts = ((number, count(counter, number)) for number in unclear)
        yield from ((number, tokens) for number, tokens in counts if tokens.total > limit)

    with ThreadPoolExecutor(1) as pool:  # the tokenizer lets go of Python's lock
        before: tuple[list[Candidate], Future[list[bool]]] | None = None
        while batch := list(islice(candidates, AT_ONCE)):
            fits = pool.submit(_fit, [each.text for each in batch], [each.allowed for each in batch], counter)
            if before:
                yield from those_longer(before[0], before[1].result())
            before = batch, fits
        if before:
            yield from those_longer(before[0], before[1].result())


def _fit(texts: Sequence[str], allowed: Sequence[float], counter: TokenCounter) -> list[bool]:
    """Return whether each text has at most so many tokens: bounded by its words, then by its beginning and the bytes of its
    rest, then counted. If none are allowed, as beside a video of unknown size, no text is examined."""

    def beginnings(some: Sequence[str], most: Sequence[float]) -> list[int]:
        cuts = [_cut(text, tokens) for text, tokens in zip(some, most, strict=True)]
        counts = counter.texts([text[:cut] for text, cut in zip(some, cuts, strict=True)], [""] * len(some), [0] * len(some))
        return [count + len(text[cut:].encode()) for text, cut, count in zip(some, cuts, counts, strict=True)]

    def whole(some: Sequence[str], most: Sequence[float]) -> list[int]:
        return counter.texts(some, [""] * len(some), [0] * len(some))

    fits = [False] * len(texts)
    for bound in (lambda some, most: counter.texts_at_most(some), beginnings, whole):
        unclear = [n for n, fit in enumerate(fits) if not fit and allowed[n] > 0]
        if unclear:
            at_most = bound([texts[n] for n in unclear], [allowed[n] for n in unclear])
            for n, tokens in zip(unclear, at_most, strict=True):
                fits[n] = tokens <= allowed[n]
    return fits


def _cut(text: str, tokens: float) -> int:
    """Return up to where ``text`` is counted, at the end of a word: as far as it has to be where a token is BYTES_OF_TOKEN."""
    excess = len(text.encode()) - tokens
    place = min(len(text), int(excess / (1 - 1 / BYTES_OF_TOKEN)) + 1)
    end = text.rfind(" ", 0, place) if place < len(text) else -1
    return end if end > 0 else place


def gather_counts(count: Callable[[], dict[int, SampleTokens]], folder: Path) -> dict[int, SampleTokens]:
    """Return what all processes count, each its share, by way of ``folder``: see :func:`gather`."""
    counts = gather(lambda: {number: asdict(tokens) for number, tokens in count().items()}, folder)
    return {int(number): SampleTokens(**count) for part in counts for number, count in part.items()}


def gather(work: Callable[[], Any], folder: Path) -> list[Any]:
    """Return the results of ``work`` in all processes, as JSON in ``folder``, so that a resumed run does not repeat it."""
    if num_processes() == 1:
        return [work()]
    files = [folder / f"{n}_of_{num_processes()}.json" for n in range(num_processes())]
    if not files[process_index()].exists():
        write_atomic(files[process_index()], json.dumps(work()))
    deadline = time.monotonic() + WAIT_S
    while missing := [file for file in files if not file.exists()]:
        if time.monotonic() > deadline:
            raise DataError(
                f"{missing[0]}: another process of this run did not finish counting its part "
                f"of the data in {WAIT_S:,} s; do all share OUT?"
            )
        time.sleep(0.2)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


MOST_WORDS, LONGEST_WORD = 1 << 18, 32  # words that are remembered, and characters of one: some 30 MB at the most


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


class _WordTokens(dict[str, int]):
    """Tokens of words with the space before them; of one that is not known its bytes, for a token is at least one."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normalizer = None if backend is None else backend.normalizer

    def __missing__(self, word: str) -> int:
        return self.bytes_of(word) + 1

    def bytes_of(self, word: str) -> int:
        """Return the bytes of a word, or of the tokenizer's normal form if that has more (NFC)."""
        num_bytes = len(word.encode())
        return num_bytes if self._normalizer is None else max(num_bytes, len(self._normalizer.normalize_str(word).encode()))


class TokenCounter:
    """Counts without decoding an image: its size is in its first bytes."""

    def __init__(self, processor: Any) -> None:
        self._processor, self._specials = processor, special_tokens(processor.tokenizer)
        self._by_size: dict[tuple[int, int], int] = {}
        self._by_word = _WordTokens(processor.tokenizer)

    def images(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Count the tokens of images of (height, width) px."""
        all_sizes = list(sizes)
        new = sorted({size for size in all_sizes if size not in self._by_size})
        if new:
            counts = count_image_tokens(self._processor, new, by_formula=self._has_formula)
            self._by_size |= dict(zip(new, counts, strict=True))
        return sum(self._by_size[size] for size in all_sizes)

    def render(self, prompt: Sequence[Message]) -> str:
        """Return a prompt as its model reads it, a mark for each image."""
        chat = chat_of(prompt, self._specials)
        return self._before + str(self._processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def texts(self, rendered: Sequence[str], answers: Sequence[str], num_images: Sequence[int]) -> list[int]:
        """Count the tokens of rendered prompts and the answers behind them; of an image only the marks around it count."""
        return count_text_tokens(self._processor, rendered, [self.learnt(answer) for answer in answers], num_images)

    def learnt(self, answer: str) -> str:
        """Return an answer as the model is trained on it, after the prompt."""
        return continuation(completion_to_learn(answer, self._specials), self._opening)

    @cached_property
    def _has_formula(self) -> bool:
        return has_token_formula(self._processor)

    @cached_property
    def _before(self) -> str:
        return text_before(self._processor)

    @cached_property
    def _opening(self) -> str:
        return thinking_opening(self._processor)

    def texts_at_most(self, texts: Sequence[str]) -> list[int]:
        """Bound the tokens of texts from above, much faster than counting: by the sum over their words, each counted once with
        the space before it; first words and unknown words count by bytes. Valid if no token reaches over a space: byte-level
        BPE, WordPiece, Unigram and SentencePiece's BPE.
        """
        known, words = self._by_word, set[str]()
        for text in texts:  # one by one: a list of all words of long texts is large
            words.update(text.split(" ")[1:])
        new = (word for word in words - known.keys() if len(word) <= LONGEST_WORD)
        learnt = list(islice(new, MOST_WORDS - len(known)))
        counts = self.texts([f" {word}" for word in learnt], [""] * len(learnt), [0] * len(learnt))
        known.update(zip(learnt, counts, strict=True))
        split = (text.split(" ") for text in texts)
        return [known.bytes_of(first) + sum(map(known.__getitem__, rest)) for first, *rest in split]

    def candidate(self, number: int, pair: PreferencePair, text: str, limit: int) -> Iterator[Candidate]:
        """Yield sample ``number`` if ``text`` and the media of ``pair`` may have more tokens than ``limit``."""
        most, num_images = most_image_tokens(self._processor), len(media_of(pair))
        of_images = math.inf if pair.videos or (most is None and num_images) else (most or 0) * num_images
        if len(text.encode()) + of_images > limit:
            yield Candidate(number, text, limit - NEAR - of_images)

    def sample(
        self, pair: PreferencePair, order: Order, template: Template, *, answer: str = "", room: int = 0
    ) -> SampleTokens:
        """Count the tokens of a pair in one order; ``room`` is what a rollout may add."""
        prompt = build_messages(pair, order=order, template=template)
        images = [image for message in prompt for image in message.images]
        [text] = self.texts([self.render(prompt)], [answer], [len(images)])
        return SampleTokens(pair.pair_id, text, self.images(map(image_size, images)), len(images), room)


def image_size(image: bytes) -> tuple[int, int]:
    """Return (height, width) in px of an encoded picture."""
    with Image.open(io.BytesIO(image)) as opened:
        return opened.height, opened.width
