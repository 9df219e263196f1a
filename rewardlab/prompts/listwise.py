"""Prompts about one or four answers at once, and how the letter or the number of the answer is read. Text only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rewardlab.errors import ConfigError
from rewardlab.prompts import load_text
from rewardlab.types import Completion, FinishReason, Message, Part, VerdictStatus
from rewardlab.verdicts.formats import letters_in_last_line
from rewardlab.verdicts.places import after_thinking, last_line

LETTERS = "ABCD"
SLOTS = {"choice": ("{question}", "{a}", "{b}", "{c}", "{d}"), "rating": ("{question}", "{a}")}
_SLOT = re.compile(r"\{(question|a|b|c|d)\}")
_RATING = re.compile(r"(?:(?:Rating|Score)\s?:?\s?)?(10|[1-9])\.?", re.IGNORECASE)


@cache
def load_list_prompt(kind: str, file: Path | None = None) -> str:
    """Return the prompt of a ``choice`` among four or a ``rating``, or a file's. Raise ConfigError for a missing slot."""
    try:
        text = load_text(f"{kind}.txt") if file is None else file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as the prompt of a {kind} ({error})") from error
    if any(text.count(slot) != 1 for slot in SLOTS[kind]):
        raise ConfigError(f"{file}: the prompt of a {kind} must have each of {', '.join(SLOTS[kind])} once")
    return text


def list_messages(words: str, question: str, answers: Sequence[str]) -> tuple[Message, ...]:
    """Return one user turn with the answers in the order given; braces inside a question or an answer are plain text."""
    values = {"question": question, **dict(zip("abcd", answers, strict=False))}
    return (Message("user", (Part(text=_SLOT.sub(lambda match: values[match[1]], words)),)),)


@dataclass(frozen=True)
class Reading:
    """What was read in an answer: the place 0..3 of an answer or a rating 1..10, None unless ``status`` is OK."""

    value: int | None
    status: VerdictStatus


_FAILED = {
    FinishReason.ERROR: VerdictStatus.ERROR,
    FinishReason.TIMEOUT: VerdictStatus.TIMEOUT,
    FinishReason.LENGTH: VerdictStatus.TRUNCATED,
}


def read_choice(completion: Completion) -> Reading:
    """Read ``[[A]]`` to ``[[D]]`` in the last line; two different ones, other letters, and a text cut off are none."""
    rest, failed = _rest(completion)
    if rest is None:
        return Reading(None, failed)
    letters = letters_in_last_line(rest)
    if not letters:
        return Reading(None, VerdictStatus.NO_VERDICT)
    letter = letters.pop() if len(letters) == 1 else ""
    return Reading(LETTERS.index(letter), VerdictStatus.OK) if len(letter) == 1 and letter in LETTERS else _not_a_choice()


def read_rating(completion: Completion) -> Reading:
    """Read a last line that is a whole number from 1 to 10, with "Rating:" before it or not; "8/10", "7.5" and "11" are
    none."""
    rest, failed = _rest(completion)
    if rest is None:
        return Reading(None, failed)
    match = _RATING.fullmatch(last_line(rest))
    return Reading(int(match[1]), VerdictStatus.OK) if match else Reading(None, VerdictStatus.NO_VERDICT)


def _not_a_choice() -> Reading:
    return Reading(None, VerdictStatus.NOT_A_CHOICE)


def _rest(completion: Completion) -> tuple[str | None, VerdictStatus]:
    """Return what may hold a verdict, or why nothing may."""
    if completion.finish is not FinishReason.STOP:
        return None, _FAILED[completion.finish]
    if not completion.text.strip():
        return None, VerdictStatus.EMPTY
    return after_thinking(completion.text), VerdictStatus.NO_VERDICT
