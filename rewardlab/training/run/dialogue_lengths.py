"""Dialogues that are too long are left out before a run starts: several of one pair, each with turns or an answer of its own.

What is read of a pair once is counted in :mod:`rewardlab.training.run.preflight`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rewardlab.config import TrainConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import fingerprint_of, light_pairs
from rewardlab.data.rows import media_of
from rewardlab.errors import DataError
from rewardlab.processes import is_main, num_processes, process_index
from rewardlab.prompts import Template, build_messages
from rewardlab.reporting.progress import Advance, bar, log_line
from rewardlab.training.run.folder import has_begun
from rewardlab.training.run.preflight import AT_ONCE, COUNTS, context_of, gather_counts, processor_of
from rewardlab.training.run.rows import SFTDialogue
from rewardlab.training.run.token_counts import SampleTokens, TokenCounter
from rewardlab.types import Message, Part, PreferencePair

Waiting = list[tuple[int, str, str, float]]  # place, what stands before the answer, the answer, tokens of images at most


def places_that_fit(
    pairs: Sequence[PreferencePair],
    dialogues: Sequence[SFTDialogue],
    config: TrainConfig,
    template: Template,
    out: Path,
    *,
    name: str,
) -> list[int]:
    """Return the places of the dialogues that fit. Those longer than ``config.max_tokens`` are listed in the file
    ``out/name``, and logged.

    Where no ``max_tokens`` is given, raise DataError for one longer than the model's context. Also where none fits.
    """
    if (limit := config.max_tokens or context_of(config.model)) is None or not dialogues:
        return list(range(len(dialogues)))
    learnt = hashlib.sha256("".join(map(repr, dialogues)).encode(errors="surrogatepass")).hexdigest()
    described = (fingerprint_of(pairs), learnt, config.model, config.pixels, config.frames, limit, template.hash)

    def count() -> dict[int, SampleTokens]:
        with bar("tokens", len(dialogues)) as advance:
            counter = TokenCounter(processor_of(config))
            return dict(_too_long(pairs, dialogues, limit, counter, template, advance))

    too_long = gather_counts(count, out / COUNTS / hashlib.sha256(repr(described).encode()).hexdigest()[:16])
    if is_main() and not has_begun(out):
        _list(too_long, out / name)
    if not too_long:
        return list(range(len(dialogues)))
    worst = max(too_long.values(), key=lambda count: count.total)
    message = (
        f"{len(too_long):,} of {len(dialogues):,} dialogues are longer than {limit:,} tokens; the longest, of {worst.pair_id}, "
        f"has {worst.text:,} of text and {worst.images:,} of {worst.num_images} images"
    )
    if config.max_tokens is None or len(too_long) == len(dialogues):
        cure = "raise max_tokens" if config.max_tokens else "set max_tokens to have them left out"
        raise DataError(f"{message}. Lower pixels.max or frames, or {cure}")
    if is_main():
        log_line(f"{message}: left out, see {out / name}")
    return [place for place in range(len(dialogues)) if place not in too_long]


def _list(too_long: dict[int, SampleTokens], file: Path) -> None:
    if too_long:
        rows = (json.dumps({**asdict(too_long[n]), "total": too_long[n].total}) + "\n" for n in sorted(too_long))
        write_atomic(file, "".join(rows))
    else:
        file.unlink(missing_ok=True)  # of a start that failed


def _too_long(
    pairs: Sequence[PreferencePair],
    dialogues: Sequence[SFTDialogue],
    limit: int,
    counter: TokenCounter,
    template: Template,
    advance: Advance,
) -> Iterator[tuple[int, SampleTokens]]:
    """Yield (place, tokens) of the dialogues longer than ``limit`` among those of this process's share of the pairs.

    A token is at least a byte, and an image at most so many tokens: what is shorter by that is not counted. Of the others texts
    are counted, and pairs read from disk only where the size of their images may still decide.
    """
    places: dict[int, list[int]] = {}
    for place, dialogue in enumerate(dialogues):
        places.setdefault(dialogue.number, []).append(place)
    waiting: Waiting = []

    def count() -> Iterator[tuple[int, SampleTokens]]:
        lengths = counter.texts(
            [text for _, text, _, _ in waiting], [answer for _, _, answer, _ in waiting], [0] * len(waiting)
        )
        for (place, _, _, of_images), tokens in zip(waiting, lengths, strict=True):
            if tokens + of_images > limit:
                counted = count_dialogue(pairs[dialogues[place].number], dialogues[place], counter, template)
                if counted.total > limit:
                    yield place, counted

    for number, pair in light_pairs(pairs):
        for place in places.get(number, ()) if number % num_processes() == process_index() else ():
            messages, raw = dialogue_messages(pair, dialogues[place], template)
            answer = counter.learnt(raw)
            rendered, of_images = counter.render(messages), _most_tokens(pair, counter)
            if len(rendered.encode()) + len(answer.encode()) + of_images > limit:
                waiting.append((place, rendered, answer, of_images))
            if len(waiting) == AT_ONCE:
                yield from count()
                waiting = []
            advance(num_processes())
    if waiting:
        yield from count()


def dialogue_messages(pair: PreferencePair, dialogue: SFTDialogue, template: Template) -> tuple[list[Message], str]:
    """Return what stands before a dialogue's answer, and the answer."""
    turns = [Message(turn["role"], (Part(turn["content"]),)) for turn in dialogue.turns]
    messages = [*build_messages(pair, order=dialogue.order, template=template), *turns]
    return messages, pair.judgment if dialogue.answer is None else dialogue.answer


def count_dialogue(pair: PreferencePair, dialogue: SFTDialogue, counter: TokenCounter, template: Template) -> SampleTokens:
    """Return the tokens of a dialogue: prompt, images, turns and answer."""
    prompt = counter.sample(pair, dialogue.order, template)
    messages, answer = dialogue_messages(pair, dialogue, template)
    [text] = counter.texts([counter.render(messages)], [answer], [prompt.num_images])
    return replace(prompt, text=text)


def _most_tokens(pair: PreferencePair, counter: TokenCounter) -> float:
    most, num_images = counter.most_image_tokens, len(media_of(pair))
    return math.inf if pair.videos or (most is None and num_images) else (most or 0) * num_images
