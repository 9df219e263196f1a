"""Judgments of one response, and of whole lists: a rating on a stated scale, the best of N, or all N in order.

Each reader returns the scores of the responses as shown, higher is better, so that one rule compares any two of them. They are
fail-closed like those of pairs: the last line must hold the statement and nothing else of its kind, and a text without one has
no scores. Letters name responses in the order shown: A is the first one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_uppercase

from rewardlab.types import Choice, Completion, FinishReason, Verdict, VerdictStatus
from rewardlab.verdicts.places import after_thinking, last_line, statements_of

LETTERS = ascii_uppercase
MAX_LISTED = len(LETTERS)
SCALES = {"rating": (1, 10), "rating_5": (1, 5), "rating_100": (0, 100)}  # least and greatest rating
SCORES = "scores"  # of a head
LIST_FORMATS = (*SCALES, "best", "ordering", SCORES)


@dataclass(frozen=True)
class ListReading:
    """The scores of the responses as shown; None unless ``status`` is OK."""

    scores: tuple[float, ...] | None
    status: VerdictStatus
    rule: str = ""


_FAILED = {
    FinishReason.ERROR: VerdictStatus.ERROR,
    FinishReason.TIMEOUT: VerdictStatus.TIMEOUT,
    FinishReason.LENGTH: VerdictStatus.TRUNCATED,
}
_RATING = re.compile(r"(?:(?:Rating|Score)\s?:?\s?)?(0|[1-9][0-9]{0,2})\.?", re.IGNORECASE | re.ASCII)
_BRACKETS = re.compile(r"\[\[([^\[\]]{0,120})\]\]")


def _none(rule: str, status: VerdictStatus = VerdictStatus.NO_VERDICT) -> ListReading:
    return ListReading(None, status, rule)


def read_rating(text: str, num: int = 1, *, scale: tuple[int, int] = SCALES["rating"]) -> ListReading:
    """Read a last line that is a whole number within the scale, with "Rating:" before it or not; "8/10", "7.5" and a number
    beyond the scale are none. A rating is of one response."""
    match = _RATING.fullmatch(last_line(text)) if num == 1 else None
    if match is None:
        return _none("no_rating")
    low, high = scale
    rating = int(match[1])
    return ListReading((float(rating),), VerdictStatus.OK, "rating") if low <= rating <= high else _none("beyond_scale")


def read_best(text: str, num: int) -> ListReading:
    """Read ``[[C]]`` in the last line, the best one of ``num`` responses: 1 for it, 0 for the others."""
    letters = {*statements_of(last_line(text), _BRACKETS)}
    if not letters:
        return _none("no_letter")
    letter = letters.pop() if len(letters) == 1 else ""
    if len(letter) != 1 or letter not in LETTERS[:num]:
        return _none("other_letter", VerdictStatus.NOT_A_CHOICE)
    return ListReading(tuple(float(other == letter) for other in LETTERS[:num]), VerdictStatus.OK, "best")


def read_ordering(text: str, num: int) -> ListReading:
    """Read ``[[B > A > C]]`` in the last line: all of ``num`` responses, best first, each once; ``A = C`` are equal. The score
    of a response is how many are placed below it."""
    orderings = {*statements_of(last_line(text), _BRACKETS)}
    if not orderings:
        return _none("no_ordering")
    stated = orderings.pop() if len(orderings) == 1 else ""
    tiers = [[letter.strip() for letter in tier.split("=")] for tier in stated.split(">")]
    if sorted(letter for tier in tiers for letter in tier) != list(LETTERS[:num]):
        return _none("other_letters", VerdictStatus.NOT_A_CHOICE)
    below, scores = num, dict[str, float]()
    for tier in tiers:
        below -= len(tier)
        scores |= dict.fromkeys(tier, float(below))
    return ListReading(tuple(scores[letter] for letter in LETTERS[:num]), VerdictStatus.OK, "ordering")


def read_scores(text: str, num: int) -> ListReading:
    """Read a last line of finite numbers, the scores of a head (:mod:`rewardlab.samplers.head`): the first ``num`` of its
    places."""
    try:
        scores = tuple(map(float, last_line(text).split()))
    except ValueError:
        return _none("no_scores")
    if len(scores) < num or not all(map(math.isfinite, scores)):
        return _none("no_scores")
    return ListReading(scores[:num], VerdictStatus.OK, SCORES)


_READERS: dict[str, Callable[[str, int], ListReading]] = {
    **{name: partial(read_rating, scale=scale) for name, scale in SCALES.items()},
    "best": read_best,
    "ordering": read_ordering,
    SCORES: read_scores,
}


def list_reading(completion: Completion, list_format: str, num: int) -> ListReading:
    """Return the scores that a completion gives ``num`` responses by a format of :data:`LIST_FORMATS`. A failed or cut-off draw
    has none, whatever its text happens to contain, nor has a reasoning that was not closed."""
    if completion.finish is not FinishReason.STOP:
        return _none("", _FAILED[completion.finish])
    if not completion.text.strip():
        return _none("", VerdictStatus.EMPTY)
    rest = after_thinking(completion.text)
    return _none("unclosed_think") if rest is None else _READERS[list_format](rest, num)


def write_list(list_format: str, scores: Sequence[float], reasoning: str) -> str:
    """Return a judgment that :func:`list_reading` reads as responses in this order; the inverse for ratings of one response."""
    if list_format in SCALES:
        return f"{reasoning}\n{scores[0]:g}"
    if list_format == SCORES:
        return " ".join(map(repr, scores))
    if list_format == "best":
        return f"{reasoning}\n[[{LETTERS[max(range(len(scores)), key=scores.__getitem__)]}]]"
    tiers = [[LETTERS[n] for n, score in enumerate(scores) if score == value] for value in sorted({*scores}, reverse=True)]
    return f"{reasoning}\n[[{' > '.join(' = '.join(tier) for tier in tiers)}]]"


def compared(first: float, second: float, rule: str) -> Verdict:
    """Return the verdict of two scores, of the response shown first and of the second."""
    if first == second:
        return Verdict(None, VerdictStatus.TIE, rule)
    return Verdict(Choice.FIRST if first > second else Choice.SECOND, VerdictStatus.OK, rule)
