"""Reading a judge's answer. Fail-closed: anything but a clear verdict in its place is a status, never a choice.

Conventions live in ``CONVENTIONS``; each is a function ``text -> Verdict``. ``format_verdict`` is their inverse, so that
``parse_verdict(format_verdict(choice)) == choice`` is a law the tests hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rewardlab.errors import ConfigError
from rewardlab.types import Choice, Completion, FinishReason, Verdict, VerdictStatus

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_STRICT = re.compile(r"<think>(?P<reasoning>.+?)</think>\s*<answer>\s*[12]\s*</answer>\s*", re.DOTALL)
_CHOICES = {"1": Choice.FIRST, "2": Choice.SECOND}
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def _think_answer(text: str) -> Verdict:
    """``<think>...</think><answer>1|2</answer>``: the last answer tag after the reasoning has been closed.

    A verdict quoted inside the reasoning never counts, so an opened and unclosed ``<think>`` has no verdict. The content
    must be 1 or 2 exactly, surrounding blanks aside: "1 or 2", "Response 1" and "1.0" are not choices.
    """
    opened, closed = text.rfind("<think>"), text.rfind("</think>")
    if opened > closed:
        return Verdict(None, VerdictStatus.NO_VERDICT, "unclosed_think")
    answers = _ANSWER.findall(text[closed + len("</think>") :] if closed >= 0 else text)
    if not answers:
        return Verdict(None, VerdictStatus.NO_VERDICT, "no_answer_tag")
    choice = _CHOICES.get(answers[-1].strip())
    if choice is None:
        return Verdict(None, VerdictStatus.NOT_A_CHOICE, "answer_tag")
    return Verdict(choice, VerdictStatus.OK, "answer_tag")


def _bare(text: str) -> Verdict:
    """The verdict alone: 1 or 2 exactly, surrounding blanks aside."""
    choice = _CHOICES.get(text.strip())
    return Verdict(choice, VerdictStatus.OK if choice else VerdictStatus.NOT_A_CHOICE, "bare")


CONVENTIONS: dict[str, Callable[[str], Verdict]] = {"think_answer": _think_answer, "bare": _bare}


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
    if parse_verdict(text, convention).status is not VerdictStatus.OK:
        return None
    last = list(_ANSWER.finditer(text, text.rfind("</think>") + 1))[-1]
    return text[: last.end(1) - len(last[1].lstrip())]


def label_of(choice: Choice) -> str:
    """How a verdict is spelt in every convention."""
    return "1" if choice is Choice.FIRST else "2"


def format_verdict(choice: Choice, reasoning: str) -> str:
    """A well-formed ``think_answer`` judgment."""
    return f"<think>{reasoning}</think><answer>{label_of(choice)}</answer>"


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
