"""The final answer of a response: found in exactly one marked place, or a counted status. Never a guess.

A :class:`Contract` names the place. The thinking is left aside first, so that nothing quoted in it can earn anything. Zero
places, two places, a nested or an empty one are statuses (arXiv 2507.01006, section 4; its released code pays the minimum
for each), and so is a second kind of place beside the one agreed on: two final answers are none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MAX_ANSWER_CHARS = 4096  # of what stands in the place; no true answer is near it
_THINK = ("<think>", "</think>")
_THOUGHT = re.compile(r"\s*<think>(?P<thought>.*?)</think>(?P<solution>.*)", re.DOTALL)


class Contract(StrEnum):
    """Where the final answer stands: ``<|begin_of_box|>7<|end_of_box|>``, ``\\boxed{7}`` or ``<answer>7</answer>``."""

    BOX = "box"
    BOXED = "boxed"
    ANSWER = "answer"


TAGS = {Contract.BOX: ("<|begin_of_box|>", "<|end_of_box|>"), Contract.ANSWER: ("<answer>", "</answer>")}
BOXED = "\\boxed"
# Another kind of place beside the one agreed on. <answer> around a box is the paper's own shape, so it is not foreign there.
FOREIGN = {Contract.BOX: (BOXED,), Contract.BOXED: TAGS[Contract.BOX], Contract.ANSWER: (BOXED, *TAGS[Contract.BOX])}


class Status(StrEnum):
    """What became of the attempt to verify an answer; only ``OK`` can carry a reward."""

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
    """What stood in the place, blanks at its ends removed; "" unless ``status`` is OK."""

    text: str
    status: Status


def solution_of(response: str, *, thinking: bool) -> Extraction:
    """What follows ``<think>{thought}</think>``; BAD_FORMAT unless both tags stand once, around a thought, at the start.

    With ``thinking`` False the model is one that does not think aloud: then a tag is the fault, and the solution is all.
    """
    if not thinking:
        found = any(tag in response for tag in _THINK)
        return Extraction("", Status.BAD_FORMAT) if found else Extraction(response.strip(), Status.OK)
    match = _THOUGHT.fullmatch(response)
    if match is None or any(response.count(tag) != 1 for tag in _THINK) or not match["thought"].strip():
        return Extraction("", Status.BAD_FORMAT)
    return Extraction(match["solution"].strip(), Status.OK)


def extract(solution: str, contract: Contract) -> Extraction:
    """The content of the one place ``contract`` names in a solution (without thinking); takes time linear in its length."""
    if any(mark in solution for mark in FOREIGN[contract]):
        return Extraction("", Status.FOREIGN)
    found = _braced(solution) if contract is Contract.BOXED else _tagged(solution, *TAGS[contract])
    if found.status is not Status.OK:
        return found
    if not found.text.strip():
        return Extraction("", Status.EMPTY)
    return Extraction("", Status.TOO_LONG) if len(found.text) > MAX_ANSWER_CHARS else Extraction(found.text.strip(), Status.OK)


def _tagged(solution: str, opening: str, closing: str) -> Extraction:
    opened, closed = solution.count(opening), solution.count(closing)
    if opened == 0 and closed == 0:
        return Extraction("", Status.MISSING)
    begin, end = solution.find(opening), solution.find(closing)
    if opened > 1:
        return Extraction("", Status.NESTED if 0 <= solution.find(opening, begin + 1) < end else Status.SEVERAL)
    if opened == 0 or closed == 0 or end < begin:
        return Extraction("", Status.UNCLOSED)
    return Extraction("", Status.SEVERAL) if closed > 1 else Extraction(solution[begin + len(opening) : end], Status.OK)


def _braced(solution: str) -> Extraction:
    """``\\boxed{...}`` with balanced braces; ``\\{`` and ``\\}`` are signs of mathematics, not braces."""
    places = solution.count(BOXED)
    if places == 0:
        return Extraction("", Status.MISSING)
    begin = solution.find(BOXED) + len(BOXED)
    if not solution.startswith("{", begin):
        return Extraction("", Status.MISSING if places == 1 else Status.SEVERAL)
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", solution[begin:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            content = solution[begin + 1 : begin + brace.start()]
            if BOXED in content:
                return Extraction("", Status.NESTED)
            return Extraction("", Status.SEVERAL) if places > 1 else Extraction(content, Status.OK)
    return Extraction("", Status.UNCLOSED)
