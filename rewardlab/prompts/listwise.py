"""Asking about one or four answers at once, and reading the letter or the number that is said. Text only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rewardlab.errors import ConfigError
from rewardlab.types import Completion, FinishReason, Message, Part, VerdictStatus
from rewardlab.verdicts.formats import after_thinking, last_line, letters_in_last_line

LETTERS = "ABCD"
SLOTS = {"choice": ("{question}", "{a}", "{b}", "{c}", "{d}"), "rating": ("{question}", "{a}")}
_SLOT = re.compile(r"\{(question|a|b|c|d)\}")
_RATING = re.compile(r"(?:(?:Rating|Score)\s?:?\s?)?(10|[1-9])\.?", re.IGNORECASE)


@cache
def load_list_prompt(kind: str, file: Path | None = None) -> str:
    """The words of a ``choice`` among four or a ``rating`` of one, or a file's. Raises ConfigError for a missing slot."""
    path = file or Path(__file__).parent / f"{kind}.txt"
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as the words of a {kind} ({error})") from error
    if any(text.count(slot) != 1 for slot in SLOTS[kind]):
        raise ConfigError(f"{path}: the words of a {kind} need each of {', '.join(SLOTS[kind])} once")
    return text


def list_messages(words: str, question: str, answers: Sequence[str]) -> tuple[Message, ...]:
    """One user turn with the answers in the order given; braces inside a question or an answer are plain text."""
    values = {"question": question, **dict(zip("abcd", answers, strict=False))}
    return (Message("user", (Part(text=_SLOT.sub(lambda match: values[match[1]], words)),)),)


@dataclass(frozen=True)
class Said:
    """What was read: the place 0..3 of an answer or a rating 1..10, None unless ``status`` is OK."""

    value: int | None
    status: VerdictStatus


_FAILED = {
    FinishReason.ERROR: VerdictStatus.ERROR,
    FinishReason.TIMEOUT: VerdictStatus.TIMEOUT,
    FinishReason.LENGTH: VerdictStatus.TRUNCATED,
}


def read_choice(completion: Completion) -> Said:
    """``[[A]]`` to ``[[D]]`` in the last line; two different ones, other letters, and a text cut off are none."""
    rest, failed = _rest(completion)
    if rest is None:
        return Said(None, failed)
    said = letters_in_last_line(rest)
    if not said:
        return Said(None, VerdictStatus.NO_VERDICT)
    letter = said.pop() if len(said) == 1 else ""
    return Said(LETTERS.index(letter), VerdictStatus.OK) if len(letter) == 1 and letter in LETTERS else _not_a_choice()


def read_rating(completion: Completion) -> Said:
    """A last line that is a whole number from 1 to 10, with "Rating:" before it or not; "8/10", "7.5" and "11" are none."""
    rest, failed = _rest(completion)
    if rest is None:
        return Said(None, failed)
    found = _RATING.fullmatch(last_line(rest))
    return Said(int(found[1]), VerdictStatus.OK) if found else Said(None, VerdictStatus.NO_VERDICT)


def _not_a_choice() -> Said:
    return Said(None, VerdictStatus.NOT_A_CHOICE)


def _rest(completion: Completion) -> tuple[str | None, VerdictStatus]:
    """What may hold a verdict, or why nothing may."""
    if completion.finish is not FinishReason.STOP:
        return None, _FAILED[completion.finish]
    if not completion.text.strip():
        return None, VerdictStatus.EMPTY
    return after_thinking(completion.text), VerdictStatus.NO_VERDICT
