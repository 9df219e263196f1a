"""Samples that are too long are left out before a run starts."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rewardlab.config import TrainConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import fingerprint_of, light_pairs, pair_facts, select_pairs
from rewardlab.data.rows import media_of
from rewardlab.errors import DataError
from rewardlab.models.attention import check_attention
from rewardlab.models.loading import load_config_of, load_processor, set_pixels
from rewardlab.models.model_config import max_positions
from rewardlab.processes import is_main, num_processes, process_index
from rewardlab.prompts import Template, build_messages
from rewardlab.reporting.progress import Advance, bar, log_line
from rewardlab.training.run.folder import has_begun, refuse_finished
from rewardlab.training.run.token_counts import SampleTokens, TokenCounter
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair

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


def numbers_that_fit(
    pairs: Sequence[PreferencePair],
    config: TrainConfig,
    template: Template,
    out: Path,
    *,
    answer: Callable[[PreferencePair], str] = lambda pair: "",
    room: int = 0,
) -> Sequence[int]:
    """Return which pairs fit. Those longer than ``config.max_tokens`` are listed in ``out/too_long.jsonl``, and logged.

    Each is counted in the order that makes it longer. Where no ``max_tokens`` is given, raise DataError for a pair longer than
    the model's context: it could not be read, and cutting it could cut an image. Also where none fits. Raise ConfigError for a
    finished run, and for an attention that cannot be.
    """
    refuse_finished(out)
    check_attention(config.attn_implementation)
    limit = config.max_tokens or context_of(config.model)
    if limit is None:
        return range(len(pairs))
    described = (fingerprint_of(pairs), config.model, config.pixels, config.frames, limit, template.hash, room)
    names = [facts.pair_id for facts in pair_facts(pairs)]  # which of a set
    folder = out / COUNTS / hashlib.sha256(repr((described, names)).encode(errors="surrogatepass")).hexdigest()[:16]

    def count() -> dict[int, SampleTokens]:
        with bar("tokens", len(pairs)) as advance:
            counter = TokenCounter(processor_of(config))
            return dict(_longer(pairs, limit, counter, template, answer, room, advance))

    dropped = gather_counts(count, folder)
    kept = [n for n in range(len(pairs)) if n not in dropped]
    is_listed = is_main() and not has_begun(out)  # a run that is gone on with, or refused, has its list
    if not dropped:
        if is_listed and (out / TOO_LONG).exists():
            (out / TOO_LONG).unlink()  # of a start that failed, with other settings
        return kept
    worst = max(dropped.values(), key=lambda count: count.total)
    message = (
        f"{len(dropped):,} of {len(pairs):,} samples are longer than {limit:,} tokens; the longest, {worst.pair_id}, has "
        f"{worst.text:,} of text, {worst.images:,} of {worst.num_images} images and {worst.answer:,} for the answer"
    )
    if config.max_tokens is None or not kept:
        cure = "raise max_tokens" if config.max_tokens else "set max_tokens to have them left out"
        raise DataError(f"{message}. Lower pixels.max or frames, or {cure}")
    if is_listed:
        rows = (json.dumps({**asdict(dropped[n]), "total": dropped[n].total}) + "\n" for n in sorted(dropped))
        write_atomic(out / TOO_LONG, "".join(rows))
        log_line(f"{message}: left out, see {out / TOO_LONG}")
    return kept


@dataclass(frozen=True)
class _Candidate:
    """A pair whose bytes alone do not show that it is short enough. ``allowed``: the tokens its text may have."""

    number: int
    pair: PreferencePair
    text: str
    allowed: float


def _longer(
    pairs: Sequence[PreferencePair],
    limit: int,
    counter: TokenCounter,
    template: Template,
    answer: Callable[[PreferencePair], str],
    room: int,
    advance: Advance,
) -> Iterator[tuple[int, SampleTokens]]:
    """Yield (number, tokens) of the pairs longer than ``limit`` among this process's share.

    Most are shown to be shorter by bounds that cost little: a token is at least a byte, an image at most so many tokens, a text
    as many tokens as its words. Of the others as much text is counted as it takes, many texts at once and while the next are
    made, and read from disk, images and all, are only those that may still be too long.
    """

    def tokens_of(candidate: _Candidate) -> SampleTokens:
        whole, reply = pairs[candidate.number], answer(candidate.pair)
        counts = [counter.sample(whole, order, template, answer=reply, room=room) for order in BOTH_ORDERS]
        return max(counts, key=lambda count: count.total)

    def those_longer(candidates: Sequence[_Candidate], fits: Sequence[bool]) -> Iterator[tuple[int, SampleTokens]]:
        unclear = (candidate for candidate, fit in zip(candidates, fits, strict=True) if not fit)
        counts = ((candidate.number, tokens_of(candidate)) for candidate in unclear)
        yield from ((number, tokens) for number, tokens in counts if tokens.total > limit)

    candidates = _candidates(pairs, limit, counter, template, answer, room, advance)
    with ThreadPoolExecutor(1) as pool:  # the tokenizer lets go of Python's lock
        before: tuple[list[_Candidate], Future[list[bool]]] | None = None
        while batch := list(islice(candidates, AT_ONCE)):
            fits = pool.submit(_fit, [each.text for each in batch], [each.allowed for each in batch], counter)
            if before:
                yield from those_longer(before[0], before[1].result())
            before = batch, fits
        if before:
            yield from those_longer(before[0], before[1].result())


def _candidates(
    pairs: Sequence[PreferencePair],
    limit: int,
    counter: TokenCounter,
    template: Template,
    answer: Callable[[PreferencePair], str],
    room: int,
    advance: Advance,
) -> Iterator[_Candidate]:
    most = counter.most_image_tokens
    for number, pair in light_pairs(pairs):
        if number % num_processes() != process_index():
            continue
        num_images = len(media_of(pair))
        of_images = math.inf if pair.videos or (most is None and num_images) else (most or 0) * num_images
        text = counter.render(build_messages(pair, order=Order.GIVEN, template=template)) + counter.learnt(answer(pair))
        if len(text.encode()) + room + of_images > limit:
            yield _Candidate(number, pair, text, limit - NEAR - room - of_images)
        advance(num_processes())


def _fit(texts: Sequence[str], allowed: Sequence[float], counter: TokenCounter) -> list[bool]:
    """Return whether each text is shown to have at most so many tokens: by those of its words; or else by those of its
    beginning and the bytes of its rest; or else by all of its tokens. Where none are allowed, as beside a video of unknown
    size, no text is looked at."""

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
    """Return what ``work`` gave each process, as JSON has it, by way of ``folder``, which is of this very work: several that go
    on with a run do not work again."""
    if num_processes() == 1:
        return [work()]
    files = [folder / f"{n}_of_{num_processes()}.json" for n in range(num_processes())]
    if not files[process_index()].exists():
        write_atomic(files[process_index()], json.dumps(work()))
    deadline = time.monotonic() + WAIT_S
    while missing := [file for file in files if not file.exists()]:
        if time.monotonic() > deadline:
            raise DataError(
                f"{missing[0]}: another process of this run has not counted its share in {WAIT_S:,} s; do all share OUT?"
            )
        time.sleep(0.2)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
