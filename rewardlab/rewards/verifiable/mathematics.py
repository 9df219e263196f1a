"""Is an answer mathematically the truth? Rules first; what they leave goes to math-verify in a process of its own.

math-verify's own time limit is a signal: it cannot be set off the main thread, and on it does not interrupt the arithmetic
of a power tower. Here the limit is the end of the process, so it holds in threads and event loops and whatever is computed.
math-verify also reads generously ("5 = 7", "7 8" and "between 0 and 10" have values), which a policy learns to use: only
one expression without prose, of a kind the truth asks for, gets that far.
"""

from __future__ import annotations

import re
import sys
from fractions import Fraction
from pathlib import Path

from rewardlab.rewards.verifiable.extraction import AnswerStatus, parse_number, terminates
from rewardlab.rewards.verifiable.rules import Problem, Verification
from rewardlab.rewards.verifiable.workers import NUM_WORKERS, WorkerPool

DECIMAL_TOLERANCE = Fraction(1, 100_000)  # relative, for decimals of what has no finite decimal; glmv_reward's default
MAX_CHARS = 512
# fmt: off
_NAMES = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "log", "exp",
          "lim", "min", "max", "sqrt", "det", "gcd", "mod", "deg"}
# fmt: on
_COMMAND = re.compile(r"\\(?:begin|end)\{[a-z]+\}|\\(?:text|mathrm|mathbf|operatorname)\s*|\\[A-Za-z]+|\\.")
_WORD = re.compile(r"[A-Za-z]{3,}|\b(?:or|to|is|in|of|at|no|if)\b", re.IGNORECASE)
_SIGNS = str.maketrans(
    {"−": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "°": r"^\circ "}
)
_NO_MEANING = re.compile(r"(\\\\)|\\left|\\right|\\[,;!: ]|\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\?[%$]|\\displaystyle")
_NAMED = re.compile(r"\s*[A-Za-z](?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]+\}))?(?:\([a-z]\))?\s*(?:=(?!=)|\\in\b)")
# What joins two answers into one text, or wraps one that math-verify then reads alone.
_JOINED = re.compile(
    r"[0-9.](?=\s+[0-9.])|\\q?quad|\\\\|\\vee|\\lor|;|\\approx|\\equiv|\\sim|\\in\b|\\ni\b|\\max|\\min|\\f?box(?:ed)?\b"
)


def normalize(text: str) -> str:
    """Return the text with typographic signs as LaTeX, without outer dollars, spacing commands, "%", "$" and degree signs."""
    text = text.strip()
    for mark in ("$$", "$"):
        if text.startswith(mark) and text.endswith(mark) and len(text) > 2 * len(mark):
            text = text[len(mark) : -len(mark)]
    if "$" in text.replace("\\$", "").lstrip("$"):
        return text  # two formulas: left whole, and refused
    return _NO_MEANING.sub(lambda match: match[1] or " ", text.translate(_SIGNS)).strip()  # a row of a matrix ends in two


def has_prose(text: str) -> bool:
    """Return whether there are words other than names of functions and commands; a \\text{...} is prose too."""
    words = _WORD.findall(_COMMAND.sub(" ", text))
    return any(word.lower() not in _NAMES for word in words)


def strip_name(answer: str, truth: str) -> str:
    """Return the answer without a leading "x =" or "x \\in" where the truth has no relation."""
    return answer if "=" in truth or "\\in" in truth.replace("\\infty", "") else _NAMED.sub("", answer, count=1)


def joining_signs(text: str) -> set[str]:
    """Return the signs in a text that can join two answers; juxtaposed numbers count as one sign, whatever their digits."""
    return {"0" if sign[0].isdigit() or sign[0] == "." else sign for sign in _JOINED.findall(text)}


def _compact(text: str) -> str:
    """Return the text without the blanks that mean nothing: those between two numbers or names stay ("1 2" is not 12)."""
    return re.sub(r"(?<![0-9A-Za-z.])\s+|\s+(?![0-9A-Za-z.])", "", text)


def rule_verdict(problem: Problem, answer: str) -> Verification | None:
    """Return what is decided without algebra; None where math-verify must decide."""
    truth, text = normalize(problem.truth), normalize(answer)
    if _compact(truth) and _compact(truth) == _compact(text):
        return Verification(1.0, AnswerStatus.OK, answer)
    unreadable = Verification(0.0, AnswerStatus.UNREADABLE, answer)
    if has_prose(truth):  # a truth in words is compared as words only
        return Verification(0.0, AnswerStatus.OK, answer)
    if len(text) > MAX_CHARS:
        return Verification(0.0, AnswerStatus.TOO_LONG, answer)
    if not text or not text.isascii() or "$" in text or has_prose(text):
        return unreadable
    text = strip_name(text, truth)
    if text.count("=") > truth.count("="):  # a second equation is an alternative, and math-verify reads the last
        return unreadable
    true_value, value = parse_number(truth), parse_number(text)
    if true_value is not None:
        return unreadable if value is None else Verification(float(_same(true_value, value, text)), AnswerStatus.OK, answer)
    if not joining_signs(text) <= joining_signs(truth):
        return unreadable
    if value is None and _compact(text) in _compact(normalize(problem.question)):
        return Verification(0.0, AnswerStatus.RESTATED, answer)
    return None


def _same(truth: Fraction, value: Fraction, text: str) -> bool:
    """Return whether both are equal; a truth without a finite decimal (1/3) also equals one within a relative 1e-5."""
    if "." in text and not terminates(truth):
        return abs(value - truth) < DECIMAL_TOLERANCE * abs(truth)
    return value == truth


class MathVerifier:
    """Compares mathematical answers, from any number of threads, in ``num_workers`` processes that are started on first use and
    killed if a comparison takes longer than ``timeout_s`` (TIMEOUT) or kills them, as by the memory limit (ERROR)."""

    def __init__(self, *, timeout_s: float = 5.0, num_workers: int = NUM_WORKERS) -> None:
        self.timeout_s = timeout_s
        self._workers = WorkerPool([sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))], num_workers)

    def compare(self, problem: Problem, answer: str) -> Verification:
        r"""Return 1 if the answer equals the truth (sets, intervals, equations, expressions), else 0 with the reason. A numeric
        truth needs a written number: "3 \cdot 4" for 12 restates the question. If the truth has no finite decimal, a decimal
        within 1e-5 counts. An answer copied from the question is RESTATED; one that rewrites it without solving can still pass
        if truth and question are equal as expressions ("expand (x+1)^2"): such prompts need another domain.
        """
        early = rule_verdict(problem, answer)
        if early is not None:
            return early
        truth = normalize(problem.truth)
        status, same = self._compare(truth, strip_name(normalize(answer), truth))
        return Verification(float(same and status is AnswerStatus.OK), status, answer)

    def _compare(self, truth: str, answer: str) -> tuple[AnswerStatus, bool]:
        job = {"truth": truth, "answer": answer, "timeout_s": self.timeout_s}
        try:
            reply = self._workers.ask(job, self.timeout_s)
            return AnswerStatus(str(reply["status"])), bool(reply["same"])
        except TimeoutError:
            return AnswerStatus.TIMEOUT, False
        except (OSError, ValueError):
            return AnswerStatus.ERROR, False

    def close(self) -> None:
        """End the processes; a later comparison starts new ones."""
        self._workers.close()
