"""The final answer of a response: in exactly one marked place, or a counted status. Never a guess.

A :class:`Contract` names the place. The thinking is left aside first, so that nothing quoted in it can earn anything. Zero
places, two places, a nested or an empty one are statuses (arXiv 2507.01006, section 4; its released code pays the minimum
for each), and so is a second kind of place beside the one agreed on: two final answers are none. A program
is in a fence instead, and some rules read all of a response (:func:`fenced`, :func:`whole`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from rewardlab.verdicts.places import with_thinking

MAX_ANSWER_CHARS = 4096  # of what stands in the place; no true answer is near it
MAX_TEXT_CHARS = 65_536  # of a program, or of a response that is read as a whole
_THINK = ("<think>", "</think>")
_THOUGHT = re.compile(r"\s*<think>(?P<thought>.*?)</think>(?P<solution>.*)", re.DOTALL)


class Contract(StrEnum):
    """The place of the final answer: ``<|begin_of_box|>7<|end_of_box|>``, ``\\boxed{7}`` or ``<answer>7</answer>``."""

    BOX = "box"
    BOXED = "boxed"
    ANSWER = "answer"


TAGS = {Contract.BOX: ("<|begin_of_box|>", "<|end_of_box|>"), Contract.ANSWER: ("<answer>", "</answer>")}
BOXED = "\\boxed"
# Another kind of place beside the one agreed on. <answer> around a box is the paper's own shape, so it is not foreign there.
FOREIGN = {Contract.BOX: (BOXED,), Contract.BOXED: TAGS[Contract.BOX], Contract.ANSWER: (BOXED, *TAGS[Contract.BOX])}


def place(content: str, contract: Contract) -> str:
    """Return ``content`` where the contract expects the final answer."""
    return f"{BOXED}{{{content}}}" if contract is Contract.BOXED else content.join(TAGS[contract])


class AnswerStatus(StrEnum):
    """The outcome of verifying an answer; only ``OK`` can carry a reward."""

    OK = "ok"
    BAD_FORMAT = "bad_format"  # thinking missing, empty, unclosed or opened twice
    TRUNCATED = "truncated"
    MISSING = "missing"
    SEVERAL = "several"
    NESTED = "nested"
    UNCLOSED = "unclosed"
    FOREIGN = "foreign"
    EMPTY = "empty"
    TOO_LONG = "too_long"
    UNREADABLE = "unreadable"  # not one answer of the domain: prose, a range, alternatives, look-alike characters
    RESTATED = "restated"  # the question's own expression given back
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Extraction:
    """The text in the place, blanks at its ends removed; "" unless ``status`` is OK."""

    text: str
    status: AnswerStatus


def solution_of(response: str, *, thinking: bool, opened: bool | None = None) -> Extraction:
    """Return what follows ``<think>{thought}</think>``; BAD_FORMAT unless both tags occur once, around a thought, at the start.
    With ``thinking`` False a tag is the fault, and the solution is the whole response. ``opened`` as in
    :func:`rewardlab.verdicts.places.with_thinking`."""
    if not thinking:
        has_tag = any(tag in response for tag in _THINK)
        return Extraction("", AnswerStatus.BAD_FORMAT) if has_tag else Extraction(response.strip(), AnswerStatus.OK)
    response = with_thinking(response, opened)
    match = _THOUGHT.fullmatch(response)
    if match is None or any(response.count(tag) != 1 for tag in _THINK) or not match["thought"].strip():
        return Extraction("", AnswerStatus.BAD_FORMAT)
    return Extraction(match["solution"].strip(), AnswerStatus.OK)


def extract(solution: str, contract: Contract) -> Extraction:
    """Return the content of the one place that ``contract`` names in a solution (without thinking), in linear time."""
    if any(mark in solution for mark in FOREIGN[contract]):
        return Extraction("", AnswerStatus.FOREIGN)
    extraction = _braced(solution) if contract is Contract.BOXED else _tagged(solution, *TAGS[contract])
    if extraction.status is not AnswerStatus.OK:
        return extraction
    if not extraction.text.strip():
        return Extraction("", AnswerStatus.EMPTY)
    if len(extraction.text) > MAX_ANSWER_CHARS:
        return Extraction("", AnswerStatus.TOO_LONG)
    return Extraction(extraction.text.strip(), AnswerStatus.OK)


_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<rest>.*)")


def fenced(solution: str) -> Extraction:
    """Return the program in the one fence of a solution: a line of three or more backticks or tildes, perhaps with a language,
    up to a line of as many or more of them alone."""
    programs, lines, opened = list[str](), list[str](), None
    for line in re.split(r"\r\n|\r|\n", solution.lstrip("\ufeff")):
        fence = _FENCE.fullmatch(line)
        if opened is None:
            opened = fence
        elif fence and fence["mark"].startswith(opened["mark"]) and not fence["rest"].strip():
            programs.append("\n".join(lines))
            lines, opened = [], None
        else:
            lines.append(line.removeprefix(opened["indent"]))
    if opened is not None or len(programs) != 1:
        kind = AnswerStatus.UNCLOSED if opened else AnswerStatus.SEVERAL if programs else AnswerStatus.MISSING
        return Extraction("", kind)
    return _text(programs[0])


def whole(solution: str) -> Extraction:
    """Return all of a solution; EMPTY if it has no letter and no digit."""
    return _text(solution.strip())


def _text(text: str) -> Extraction:
    if not any(map(str.isalnum, text)):
        return Extraction("", AnswerStatus.EMPTY)
    return Extraction(text, AnswerStatus.OK) if len(text) <= MAX_TEXT_CHARS else Extraction("", AnswerStatus.TOO_LONG)


def _tagged(solution: str, opening: str, closing: str) -> Extraction:
    num_opening, num_closing = solution.count(opening), solution.count(closing)
    if num_opening == 0 and num_closing == 0:
        return Extraction("", AnswerStatus.MISSING)
    begin, end = solution.find(opening), solution.find(closing)
    if num_opening > 1:
        return Extraction("", AnswerStatus.NESTED if 0 <= solution.find(opening, begin + 1) < end else AnswerStatus.SEVERAL)
    if num_opening == 0 or num_closing == 0 or end < begin:
        return Extraction("", AnswerStatus.UNCLOSED)
    return (
        Extraction("", AnswerStatus.SEVERAL)
        if num_closing > 1
        else Extraction(solution[begin + len(opening) : end], AnswerStatus.OK)
    )


def _braced(solution: str) -> Extraction:
    """Return the content of ``\\boxed{...}`` with balanced braces; ``\\{`` and ``\\}`` are signs of mathematics, not braces."""
    places = solution.count(BOXED)
    if places == 0:
        return Extraction("", AnswerStatus.MISSING)
    begin = solution.find(BOXED) + len(BOXED)
    if not solution.startswith("{", begin):
        return Extraction("", AnswerStatus.MISSING if places == 1 else AnswerStatus.SEVERAL)
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", solution[begin:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            content = solution[begin + 1 : begin + brace.start()]
            if BOXED in content:
                return Extraction("", AnswerStatus.NESTED)
            return Extraction("", AnswerStatus.SEVERAL) if places > 1 else Extraction(content, AnswerStatus.OK)
    return Extraction("", AnswerStatus.UNCLOSED)


_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = re.compile(rf"(?P<sign>[+-]?)(?P<digits>{_DECIMAL})(?:[eE](?P<exponent>[+-]?[0-9]{{1,3}}))?")
_POWER = re.compile(
    rf"(?P<number>[+-]?{_DECIMAL})(?:\\times|\\cdot|\*|×)10\^(?:\{{(?P<braced>[+-]?[0-9]{{1,3}})\}}|(?P<bare>[0-9]))"
)
_RATIO = re.compile(r"(?P<sign>[+-]?)(?P<top>[0-9]+)/(?P<bottom>[0-9]+)")
_FRAC = re.compile(
    r"(?P<sign>[+-]?)(?P<integer>[0-9]*)\\[dt]?frac(?:\{(?P<top>-?[0-9]+)\}|(?P<top1>[0-9]))(?:\{(?P<bottom>[0-9]+)\}|(?P<bottom1>[0-9]))"
)
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<currency>[$€£¥]?)(?P<number>[+-]?[0-9.,]+(?:[eE][+-]?[0-9]{1,3})?)\s*(?P<unit>%|[A-Za-zµ°²³/]*)"
)
_MAX_DIGITS = 400


@dataclass(frozen=True)
class Quantity:
    """A number with its unit or sign: ``unit`` is "", "%", a currency sign or one word."""

    value: Fraction
    unit: str


def parse_number(text: str) -> Fraction | None:
    r"""Return the exact value of a written number: 7, -1,234.5, .5, 1e-3, 3\times10^{5}, 1/2, \frac12, 1\frac{1}{2}; None for
    all else, also for sums, products, powers, ranges, lists and words. Blanks are ignored except between digits."""
    text = text.strip().replace("\u2212", "-").replace("{,}", ",")
    if len(text) > _MAX_DIGITS or re.search(r"[0-9.]\s+[0-9.]", text):
        return None
    text = re.sub(r"\s+", "", text)
    if match := _NUMBER.fullmatch(text):
        return _value(match["sign"] + match["digits"], match["exponent"])
    if match := _POWER.fullmatch(text):
        return _value(match["number"], match["braced"] or match["bare"])
    if match := _RATIO.fullmatch(text):
        return _fraction(match["sign"], 0, match["top"], match["bottom"])
    if match := _FRAC.fullmatch(text):
        integer = int(match["integer"] or 0)
        return _fraction(match["sign"], integer, match["top"] or match["top1"], match["bottom"] or match["bottom1"])
    return None


def _value(digits: str, exponent: str | None) -> Fraction:
    return Fraction(digits.replace(",", "")) * Fraction(10) ** int(exponent or 0)


def _fraction(sign: str, integer: int, top: str, bottom: str) -> Fraction | None:
    if int(bottom) == 0:
        return None
    value = integer + Fraction(int(top), int(bottom))
    return -value if sign == "-" else value


def parse_quantity(text: str) -> Quantity | None:
    """Return a number with at most one currency sign before it and one "%" or word after it; None for all else."""
    match = _QUANTITY.fullmatch(text.strip().replace("\u2212", "-").replace("\\%", "%").replace("\\$", "$"))
    if match is None or (match["currency"] and match["unit"]) or (match["sign"] and match["number"][0] in "+-"):
        return None
    value = parse_number(match["sign"] + match["number"])
    return None if value is None else Quantity(value, match["currency"] or match["unit"].lower())


def is_year(text: str) -> bool:
    """Return whether a text is a bare whole number from 1000 to 2999: no unit, no separator, no decimals."""
    return re.fullmatch(r"[12][0-9]{3}", text.strip()) is not None


def terminates(value: Fraction) -> bool:
    """Return whether a fraction can be written as a decimal of finite length: its denominator has no factors but 2 and 5."""
    bottom = value.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    return bottom == 1
