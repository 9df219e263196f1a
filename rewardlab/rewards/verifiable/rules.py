"""Verifiable rewards: an extracted answer against a known truth, 0..1, by the rule of its domain.

Sources: arXiv 2507.01006 (GLM-4.1V-Thinking, section 4 and its released ``glmv_reward``), 2505.07062 (Seed1.5-VL). Stricter
than the released code, whose policies learned to write "a correct number between 0 and 10": an answer that is not exactly
one answer of its domain is UNREADABLE and earns nothing, whatever it contains. Mathematics needs a symbolic engine and lives
in :mod:`rewardlab.rewards.verifiable.mathematics`.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import isfinite
from typing import Any

from rewardlab.rewards.verifiable.extraction import (
    MAX_TEXT_CHARS,
    AnswerStatus,
    Contract,
    Extraction,
    extract,
    fenced,
    is_year,
    parse_quantity,
    whole,
)

CHART_TOLERANCE = Fraction(25, 1000)  # relative; glmv_reward's full_config.yaml
MIN_IOU = 0.5


class Domain(StrEnum):
    """What kind of truth a prompt has, hence which rule reads its answers."""

    MATH = "math"
    NUMBER = "number"
    CHOICE = "choice"
    EXACT = "exact"
    OCR = "ocr"
    GROUNDING = "grounding"
    COUNT = "count"
    CODE = "code"
    CONSTRAINTS = "constraints"


@dataclass(frozen=True)
class Problem:
    """A question with a checkable truth. No field is optional: a rule must not fall silent because one was left out."""

    domain: Domain
    question: str
    truth: str
    contract: Contract


@dataclass(frozen=True)
class Verification:
    """``score`` in 0..1, above 0 only where ``status`` is OK; ``extracted`` is the answer that was read."""

    score: float
    status: AnswerStatus
    extracted: str = ""

    def __post_init__(self) -> None:
        assert 0 <= self.score <= 1, self
        assert self.status is AnswerStatus.OK or self.score == 0, self


Compare = Callable[[Problem, str], Verification]
"""(problem, extracted answer) -> verification. May raise ValueError for a truth that it cannot read."""
PLACES: dict[str, Callable[[str], Extraction]] = {Domain.CODE: fenced, Domain.CONSTRAINTS: whole}  # in any contract


def verify(problem: Problem, solution: str, verifiers: Mapping[str, Compare]) -> Verification:
    """Extract the answer from a solution (without thinking) and compare it; an exception is an ERROR. ``verifiers`` is
    ``RULES``, or :func:`rewardlab.rewards.verifiable.hybrid.all_verifiers` for mathematics and programs too."""
    read = PLACES.get(problem.domain)
    extraction = read(solution) if read else extract(solution, problem.contract)
    if extraction.status is not AnswerStatus.OK:
        return Verification(0.0, extraction.status)
    try:
        return verifiers[problem.domain](problem, extraction.text)
    except Exception:  # the boundary: a broken verifier must not pay, nor end a training run
        return Verification(0.0, AnswerStatus.ERROR, extraction.text)


def _graded(score: float, answer: str) -> Verification:
    return Verification(float(score), AnswerStatus.OK, answer)


def _unreadable(answer: str) -> Verification:
    return Verification(0.0, AnswerStatus.UNREADABLE, answer)


def compare_number(problem: Problem, answer: str) -> Verification:
    """Return 1 within 2.5 % of the truth; the answer may omit the unit or add "%". A bare whole truth from 1000 to 2999 is a
    year and needs exactly that number; the truth's text alone decides, or "2019.0" would pass for 2020. (The released code asks
    for whole numbers on both sides, and only if another argument is given.)
    """
    truth, reply = parse_quantity(problem.truth), parse_quantity(answer)
    if truth is None:
        raise ValueError(f"the truth {problem.truth!r} is not a number")
    if reply is None or reply.unit not in ("", truth.unit, "%" if not truth.unit else ""):
        return _unreadable(answer)
    tolerance = 0 if is_year(problem.truth) else CHART_TOLERANCE
    return _graded(abs(reply.value - truth.value) <= tolerance * abs(truth.value), answer)


def compare_count(problem: Problem, answer: str) -> Verification:
    """Return 1 for the same whole number, written in ASCII digits and nothing else."""
    truth, reply = (re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) for text in (problem.truth, answer))
    if truth is None:
        raise ValueError(f"the truth {problem.truth!r} is not an integer")
    return _unreadable(answer) if reply is None else _graded(int(reply[0]) == int(truth[0]), answer)


_LETTER = re.compile(r"(?:\\(?:text|mathrm|textbf)\{)?\(?([A-Za-z])\)?[.:]?\}?")


def compare_choice(problem: Problem, answer: str) -> Verification:
    """Return 1 for the same option letter: B, b, (B), "B.", \\text{B}. Two letters, or a letter with words, are no choice."""
    truth, reply = _LETTER.fullmatch(problem.truth.strip()), _LETTER.fullmatch(answer)
    if truth is None:
        raise ValueError(f"the truth {problem.truth!r} is not an option letter")
    return _unreadable(answer) if reply is None else _graded(reply[1].upper() == truth[1].upper(), answer)


def plain_text(text: str) -> str:
    """Return canonical Unicode (NFC: the same characters, however composed) with every run of blanks as one."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def compare_exact(problem: Problem, answer: str) -> Verification:
    """Return 1 for the same text, case included; blanks and composition of accents aside. No look-alikes."""
    return _graded(plain_text(answer) == plain_text(problem.truth), answer)


def compare_ocr(problem: Problem, answer: str) -> Verification:
    """Return 1 - edit distance / length of the longer text, over what :func:`plain_text` leaves."""
    truth, reply = plain_text(problem.truth), plain_text(answer)
    longest = max(len(truth), len(reply))
    return _graded(1 - edit_distance(truth, reply) / longest if longest else 0.0, answer)


def edit_distance(first: str, second: str) -> int:
    """Return the Levenshtein distance, a column of the table at a time as bits of one integer (Myers 1999; Hyyrö 2001)."""
    if not first:
        return len(second)
    places: dict[str, int] = {}
    for n, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << n
    full, last, distance = (1 << len(first)) - 1, 1 << (len(first) - 1), len(first)
    up, down = full, 0  # rows where the table grows, or falls, by one
    for letter in second:
        match = places.get(letter, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right_up, right_down = down | ~(diagonal | up) & full, up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = (right_up << 1 | 1) & full, right_down << 1 & full
        up, down = right_down | ~(diagonal | right_up) & full, right_up & diagonal
    return distance


_COORDINATE = r"\s*(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
_BOX = re.compile(rf"\[{','.join([_COORDINATE] * 4)}\]")
# A gap can be read in one way alone: with several the time would double with each box of a text that fails at its end.
_BOXES = re.compile(rf"\[?\s*{_BOX.pattern}(?:\s*(?:,\s*)?{_BOX.pattern})*\s*\]?")
Box = tuple[float, float, float, float]


def read_boxes(text: str) -> list[Box]:
    """Return the boxes of ``[x1,y1,x2,y2]``, one or several, in a list or not; [] for anything else. A box without area makes
    the whole text unreadable."""
    if not _BOXES.fullmatch(text.strip()):
        return []
    boxes: list[Box] = [(float(a), float(b), float(c), float(d)) for a, b, c, d in _BOX.findall(text)]
    return boxes if all(x1 < x2 and y1 < y2 for x1, y1, x2, y2 in boxes) else []


def iou(a: Box, b: Box) -> float:
    """Return the intersection over union of two boxes with area."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b)]
    return shared / (sum(areas) - shared)


def compare_grounding(problem: Problem, answer: str) -> Verification:
    """Return the mean over the truth's boxes of the IoU with the answer's box, where 0.5 or less counts as 0. Boxes are paired
    one to one, best first. An answer with more boxes than objects is SEVERAL."""
    truth, reply = read_boxes(problem.truth), read_boxes(answer)
    if not truth:
        raise ValueError(f"the truth {problem.truth!r} is not a list of boxes")
    if not reply:
        return _unreadable(answer)
    if len(reply) > len(truth):
        return Verification(0.0, AnswerStatus.SEVERAL, answer)
    pairs = sorted(((iou(t, g), n, m) for n, t in enumerate(truth) for m, g in enumerate(reply)), reverse=True)
    partners: dict[int, int] = {}
    total = 0.0
    for overlap, n, m in pairs:
        if overlap > MIN_IOU and n not in partners and m not in partners.values():
            partners[n], total = m, total + overlap
    assert isfinite(total)
    return _graded(min(1.0, total / len(truth)), answer)


# Constraints of an instruction: how long a response is, in what form, with which words. The kinds are those of IFEval
# (arXiv 2311.07911, table 1) that a rule can decide. All must hold: with a share of them as reward, an answer of one letter
# would be paid for every word that it does not use.
_UNSEEN = {0x034F, 0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
MAX_MARKS = 30  # on one letter; more are of no script, and would make composing them slow
MAX_PHRASE = 200  # characters
_BULLET = re.compile(r"\s*(?:[-+*•–◦‣·]|[0-9]{1,3}[.)])\s+\S")
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese and Japanese, each character a word
_LETTER_OR_DIGIT = rf"[^\W_{_UNSPACED}]"
_WORD = re.compile(
    rf"[{_UNSPACED}]|[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+(?:\.[0-9]+)?"
    rf"|{_LETTER_OR_DIGIT}+(?:'{_LETTER_OR_DIGIT}{{1,3}}(?!{_LETTER_OR_DIGIT}))?"
)
_STOP = re.compile(r"[.!?…。！？｡।]+|\n")


def as_read(text: str) -> str:
    """Return a text as it is read: look-alike forms (NFKC) and apostrophes as one, newlines as \\n, no characters unseen."""
    letters, marks = list[str](), 0
    for letter in "\n".join(text.splitlines()):
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind.startswith("M") else 0
        if marks <= MAX_MARKS and (kind not in ("Cc", "Cf") or letter in "\n\t") and ord(letter) not in _UNSEEN:
            letters.append(letter)
    return unicodedata.normalize("NFKC", "".join(letters)).replace("’", "'")


def bare_letters(text: str) -> str:
    """Return a text without the marks on its letters that are no letter with it (of Hindi, or struck through), and without
    asterisks."""
    return "".join(letter for letter in text if letter != "*" and not unicodedata.category(letter).startswith("M"))


def _sentences(text: str) -> int:
    ends = []
    for stop in _STOP.finditer(text):
        before, after = text[max(0, stop.start() - 2) : stop.start()], text[stop.end() : stop.end() + 1]
        is_number = before[-1:].isdigit() and after.isdigit()
        is_initial = before[-1:].isalpha() and not before[:-1].isalpha() and len(stop[0]) == 1 and stop[0] == "."
        if stop[0] == "\n" or not (is_number or is_initial or after.islower()):
            ends.append(stop.end())
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *ends, len(text)])]
    return sum(sum(unicodedata.category(letter)[0] in "LM" for letter in piece) > 1 for piece in pieces)


def _paragraphs(text: str) -> int:
    groups = itertools.groupby(text.split("\n"), key=lambda line: bool(line.strip()))
    return sum(filled and any(any(map(str.isalnum, line)) for line in lines) for filled, lines in groups)


COUNTS: Mapping[str, Callable[[str], int]] = {
    "characters": lambda text: len(" ".join(text.split())),
    "words": lambda text: len(_WORD.findall(bare_letters(text))),
    "sentences": _sentences,
    "lines": lambda text: sum(any(map(str.isalnum, line)) for line in text.split("\n")),
    "paragraphs": _paragraphs,
    "bullets": lambda text: sum(bool(_BULLET.match(line)) for line in text.split("\n")),
    "commas": lambda text: len(re.findall("[,‚、،]", text)),
}
"""What is counted, of a :func:`as_read` text; several blanks are one character. Hyphens part words, an apostrophe before up to
three letters does not, nor a point or comma within a number; each Chinese or Japanese character is a word, and other scripts
without blanks cannot be counted. A sentence has two letters and ends with its line or at . ! ? or …, not before a lower-case
letter, between digits, or at a point behind a single letter. A bullet is a line that begins with "-", "+", "*", "•", "–" or a
number; paragraphs are parted by empty lines."""


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict | list)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


FORMS: Mapping[str, Callable[[str], bool]] = {
    "json": _is_json,
    "lowercase": lambda text: text == text.lower(),
    "uppercase": lambda text: text == text.upper(),
    "quoted": lambda text: text[:1] + text[-1:] in ('""', "“”") and not set('"“”') & set(text[1:-1]) and len(text) > 1,
}
"""Forms of a response as it was written."""
PHRASES = ("include", "exclude", "starts", "ends")


def times(folded: str, phrase: str, *, begins: bool = False, ends: bool = False) -> int:
    """Return how often a phrase is in a :func:`folded_text` as whole words, whatever the case, the blanks and the marks on
    letters; with ``begins`` or ``ends`` only there."""
    words = folded_text(phrase).split()
    pattern = r"\s+".join(map(re.escape, words))
    before, after = (_beside(letter, look) for letter, look in ((words[0][0], "<!"), (words[-1][-1], "!")))
    return len(re.findall(("\\A" if begins else before) + pattern + ("\\Z" if ends else after), folded))


def folded_text(text: str) -> str:
    """Return a text as phrases are looked for in it."""
    return bare_letters(as_read(text)).casefold().strip()


def _beside(letter: str, look: str) -> str:
    """Return what keeps a phrase from beginning or ending within a longer word; nothing where words have no blanks."""
    return f"(?{look}{_LETTER_OR_DIGIT})" if re.fullmatch(_LETTER_OR_DIGIT, letter) else ""


def parse_constraints(text: str) -> dict[str, Any]:
    """Return the constraints of a truth: a JSON object of

    - a name of :data:`COUNTS` with a number, or with [least, most], where null is no limit;
    - ``form``: a name of :data:`FORMS`;
    - ``include``, ``exclude``: a list of phrases, as whole words in any case; ``starts``, ``ends``: a text;
    - ``times``: an object of phrases, each with a number or [least, most].

    Names without a value (null) are left out. Raise ValueError for no object, an empty one, another name or another value.
    """
    try:
        constraints = json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("constraints are nested too deep") from error
    if isinstance(constraints, dict):
        constraints = {name: value for name, value in constraints.items() if value is not None}
    if not isinstance(constraints, dict) or not constraints:
        raise ValueError('constraints are a JSON object such as {"words": [null, 50], "include": ["blue"]}')
    for name, value in constraints.items():
        if name in COUNTS:
            _limits(name, value)
        elif name == "times" and isinstance(value, dict) and value and all(map(_has_word, value)):
            for phrase, limits in value.items():
                _limits(f"times of {phrase!r}", limits)
        elif not _is_known(name, value):
            known = ", ".join([*COUNTS, *PHRASES, "times", "form"])
            raise ValueError(f"constraint {name!r}: {value!r:.60}; expected one of {known}, with a value of its type")
    return constraints


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"names are given twice among {', '.join(name for name, _ in pairs)}")
    return dict(pairs)


def _is_known(name: str, value: Any) -> bool:
    if name == "form":
        return isinstance(value, str) and value in FORMS
    if name in ("starts", "ends"):
        return _has_word(value)
    return name in PHRASES and isinstance(value, list) and bool(value) and all(map(_has_word, value))


def _has_word(phrase: Any) -> bool:
    return isinstance(phrase, str) and len(phrase) <= MAX_PHRASE and bool(folded_text(phrase))


def _limits(name: str, value: Any) -> tuple[float, float]:
    """Return least and most. Raise ValueError for anything but a whole number or two, of which one may be null."""
    limits = value if isinstance(value, list) else [value, value]
    numbers = [limit for limit in limits if limit is not None]
    is_whole = all(isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0 for limit in numbers)
    if len(limits) != 2 or not numbers or not is_whole or sorted(numbers) != numbers:
        raise ValueError(f"{name}: {value!r:.60}; expected a whole number, or [least, most] with null for no limit")
    if name in ("characters", "words", "lines", "paragraphs") and (limits[1] == 0 or (limits[0] or 0) > MAX_TEXT_CHARS):
        raise ValueError(
            f"{name}: {value!r:.60}; no response keeps to it: it has something to read, in {MAX_TEXT_CHARS:,} characters"
        )
    return (0 if limits[0] is None else limits[0], float("inf") if limits[1] is None else limits[1])


def broken_constraints(constraints: Mapping[str, Any], text: str) -> list[str]:
    """Return the names of the constraints that a response does not keep to."""
    text = text.strip()
    read, folded = as_read(text), folded_text(text)

    def holds(name: str, value: Any) -> bool:
        if name in COUNTS:
            least, most = _limits(name, value)
            return least <= COUNTS[name](read) <= most
        if name == "form":
            return FORMS[value](text)
        if name == "times":
            limits = {phrase: _limits(phrase, of) for phrase, of in value.items()}
            return all(least <= times(folded, phrase) <= most for phrase, (least, most) in limits.items())
        if name in ("starts", "ends"):
            return times(folded, value, begins=name == "starts", ends=name == "ends") > 0
        return all((times(folded, phrase) > 0) == (name == "include") for phrase in value)

    return [name for name, value in constraints.items() if not holds(name, value)]


def compare_constraints(problem: Problem, answer: str) -> Verification:
    """Return 1 if a whole response keeps to every constraint of the truth, else 0."""
    return _graded(not broken_constraints(parse_constraints(problem.truth), answer), answer)


RULES: dict[str, Compare] = {
    Domain.NUMBER: compare_number,
    Domain.CHOICE: compare_choice,
    Domain.EXACT: compare_exact,
    Domain.OCR: compare_ocr,
    Domain.GROUNDING: compare_grounding,
    Domain.COUNT: compare_count,
    Domain.CONSTRAINTS: compare_constraints,
}
