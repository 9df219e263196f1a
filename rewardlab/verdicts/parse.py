"""Reading a judge's answer. Fail-closed: anything but a clear verdict in its place is a status, never a choice.

The places are those of ``formats.py``. ``format_verdict`` is the inverse of one of them, so that
``parse_verdict(format_verdict(choice)) == choice`` is a law the tests hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rewardlab.types import Choice, Completion, Criterion, FinishReason, Verdict, VerdictStatus
from rewardlab.verdicts.checklist import checked_verdict, read_checks
from rewardlab.verdicts.formats import WRITERS, digit, reader_of
from rewardlab.verdicts.places import reasoning_of, with_thinking

CHECKLIST = "checklist"  # the format of judgments that check before they choose
_STRICT = re.compile(r"<think>(?P<reasoning>.+?)</think>\s*<answer>\s*[12]\s*</answer>\s*", re.DOTALL)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def parse_verdict(text: str, verdict_format: str) -> Verdict:
    """Read ``text`` by ``verdict_format`` (:func:`rewardlab.verdicts.formats.reader_of`).

    Raise ConfigError for an unknown format and for a reader of another's that fails, nothing else.
    """
    read = reader_of(verdict_format)
    return read(text) if text.strip() else Verdict(None, VerdictStatus.EMPTY)


def verdict_of(completion: Completion, verdict_format: str, criteria: Sequence[Criterion] = ()) -> Verdict:
    """Return the verdict of a completion. A failed or cut-off draw has none, whatever its text happens to contain; nor has a
    checklist whose checks are not of the ``criteria`` that were requested."""
    if completion.finish is FinishReason.ERROR:
        return Verdict(None, VerdictStatus.ERROR)
    if completion.finish is FinishReason.TIMEOUT:
        return Verdict(None, VerdictStatus.TIMEOUT)
    if completion.finish is FinishReason.LENGTH:
        return Verdict(None, VerdictStatus.TRUNCATED)
    if criteria and verdict_format == CHECKLIST:
        return checked_verdict(parse_verdict(completion.text, "think_answer"), reasoning_of(completion.text), criteria)
    return parse_verdict(completion.text, verdict_format)


def until_verdict(text: str, verdict_format: str) -> str | None:
    """Return the beginning of an answer up to where its verdict stands, None if it has none that can be read.

    The probability of the verdict is read after it: "" for ``bare``, reasoning and opening tag for
    ``think_answer``.
    """
    if verdict_format == "bare":
        return ""
    if verdict_format not in ("think_answer", CHECKLIST) or parse_verdict(text, verdict_format).status is not VerdictStatus.OK:
        return None
    begin = text.rfind("<answer>") + len("<answer>")
    return text[: begin + len(text[begin:]) - len(text[begin:].lstrip())]


def verdict_label(choice: Choice) -> str:
    """Return how a verdict is spelt in the formats that judges are trained on here."""
    return digit(choice)


def format_verdict(choice: Choice, reasoning: str, verdict_format: str = "think_answer") -> str:
    """Return a well-formed judgment in ``verdict_format``. Raise KeyError for an unknown one."""
    return WRITERS[verdict_format](choice, reasoning)


_OPENING = re.compile(r"<think>\s*\Z")


def opened_thinking(prompt: str) -> str:
    """Return the ``<think>``, with the blanks behind it, that a rendered prompt ends in; "" if it does not. A completion of
    such a prompt (Qwen3-VL-Thinking, GLM-4.1V-Thinking) begins within the thinking: it is read with this before it."""
    opening = _OPENING.search(prompt)
    return opening[0] if opening else ""


def continuation(answer: str, opening: str) -> str:
    """Return what an answer adds to a prompt that ends in ``opening``: the answer without a ``<think>`` of its own."""
    begin = answer.lstrip()
    if not opening or not begin.startswith("<think>"):
        return answer
    return begin.removeprefix(opening) if begin.startswith(opening) else begin.removeprefix("<think>").lstrip("\n")


def follows_format(text: str, verdict_format: str = "think_answer", *, opened: bool | None = None) -> bool:
    """Return whether ``text`` is exactly one non-empty reasoning and one answer that is 1 or 2, each tag once; of the format
    ``checklist`` the reasoning must be one. ``opened`` as in :func:`with_thinking`.

    Unlike the released R1-Reward check, blanks between the tags are allowed and an answer that is no choice is not.
    """
    text = with_thinking(text, opened)
    match = _STRICT.fullmatch(text.strip())
    if match is None or not match["reasoning"].strip() or any(text.count(tag) != 1 for tag in _TAGS):
        return False
    return verdict_format != CHECKLIST or read_checks(match["reasoning"]) is not None
