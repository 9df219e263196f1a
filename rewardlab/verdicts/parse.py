"""Reading a judge's answer. Fail-closed: anything but a clear verdict in its place is a status, never a choice.

The places are those of ``conventions.py``. ``format_verdict`` is the inverse of one of them, so that
``parse_verdict(format_verdict(choice)) == choice`` is a law the tests hold.
"""

from __future__ import annotations

import re

from rewardlab.errors import ConfigError
from rewardlab.types import Choice, Completion, FinishReason, Verdict, VerdictStatus
from rewardlab.verdicts.formats import CONVENTIONS, WRITERS, digit

_STRICT = re.compile(r"<think>(?P<reasoning>.+?)</think>\s*<answer>\s*[12]\s*</answer>\s*", re.DOTALL)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def parse_verdict(text: str, convention: str) -> Verdict:
    """Read ``text`` by ``convention``. Raises ConfigError for an unknown convention, nothing else."""
    if convention not in CONVENTIONS:
        raise ConfigError(f"unknown verdict convention {convention!r}; expected one of {sorted(CONVENTIONS)}")
    if not text.strip():
        return Verdict(None, VerdictStatus.EMPTY)
    return CONVENTIONS[convention](text)


def verdict_of(completion: Completion, convention: str) -> Verdict:
    """The verdict of a completion. A failed or cut-off draw has none, whatever its text happens to contain."""
    if completion.finish is FinishReason.ERROR:
        return Verdict(None, VerdictStatus.ERROR)
    if completion.finish is FinishReason.TIMEOUT:
        return Verdict(None, VerdictStatus.TIMEOUT)
    if completion.finish is FinishReason.LENGTH:
        return Verdict(None, VerdictStatus.TRUNCATED)
    return parse_verdict(completion.text, convention)


def until_verdict(text: str, convention: str) -> str | None:
    """The beginning of an answer up to where its verdict stands, None where it has none that can be read.

    What a judge is given to say its verdict's probability after: "" for ``bare``, reasoning and opening tag for
    ``think_answer``.
    """
    if convention == "bare":
        return ""
    if convention != "think_answer" or parse_verdict(text, convention).status is not VerdictStatus.OK:
        return None
    begin = text.rfind("<answer>") + len("<answer>")
    return text[: begin + len(text[begin:]) - len(text[begin:].lstrip())]


def label_of(choice: Choice) -> str:
    """How a verdict is spelt in the conventions that judges are trained on here."""
    return digit(choice)


def format_verdict(choice: Choice, reasoning: str, convention: str = "think_answer") -> str:
    """A well-formed judgment in ``convention``. Raises KeyError for an unknown one."""
    return WRITERS[convention](choice, reasoning)


def reasoning_span(text: str) -> tuple[int, int] | None:
    """Where the text between the first ``<think>`` and the last ``</think>`` starts and ends; None where either is missing."""
    start, end = text.find("<think>"), text.rfind("</think>")
    return (start + len("<think>"), end) if 0 <= start < end else None


def reasoning_of(text: str) -> str:
    """The reasoning of :func:`reasoning_span`, without blanks around it; "" where there is none."""
    span = reasoning_span(text)
    return text[span[0] : span[1]].strip() if span else ""


def follows_format(text: str) -> bool:
    """Whether ``text`` is exactly one non-empty reasoning and one answer that is 1 or 2, each tag once.

    Unlike the released R1-Reward check, blanks between the tags are allowed and an answer that is no choice is not.
    """
    match = _STRICT.fullmatch(text.strip())
    return match is not None and bool(match["reasoning"].strip()) and all(text.count(tag) == 1 for tag in _TAGS)
