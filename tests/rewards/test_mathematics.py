"""Mathematical answers, asked from a thread: equal things, hedges, and what must not hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.mathematics import MathVerifier, has_prose, rule_verdict
from rewardlab.rewards.verifiable.rules import Domain, Problem, Verification

TIMEOUT_S = 4.0


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    held = MathVerifier(timeout_s=TIMEOUT_S)
    yield held
    held.close()


Compared = Callable[..., Verification]


@pytest.fixture(scope="module")
def compared(verifier: MathVerifier) -> Compared:
    """Every comparison of this file runs off the main thread, where a signal cannot be set."""

    def ask(truth: str, answer: str, question: str = "What is it?") -> Verification:
        assert threading.current_thread() is threading.main_thread()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(verifier.compare, Problem(Domain.MATH, question, truth, Contract.BOXED), answer).result()

    return ask


EQUAL = [
    ("7", "7"),
    ("7", "7.0"),
    ("7", "x = 7"),
    ("7", "$7$"),
    ("0.5", "1/2"),
    ("1/2", "0.5"),
    ("1/2", r"\frac{2}{4}"),
    ("1/3", "0.333333"),
    (r"\pi", "3.14159"),
    (r"\pi", "π"),
    ("-5", "−5"),
    ("1000", "1,000"),
    (r"50\%", "50"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    ("(1,2)", r"\left(1, 2\right)"),
    (r"(3,\infty)", "(3, ∞)"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    ("y=2x+1", "y=1+2x"),
    (r"\{-2, 2\}", r"\pm 2"),
    (r"\pm 2", r"\{-2, 2\}"),
    ("[1,2]", r"x \in [1, 2]"),
    (r"\sqrt{2}", r"x = \sqrt 2"),
    ("5 apples", "5 apples"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ \frac{4}{2} \end{pmatrix}"),
]
DIFFERENT = [
    ("7", "8"),
    ("7", "6.9999999"),
    ("1000000", "1000001"),
    ("1/3", "0.333"),
    (r"\pi", "3.1415"),
    (r"\pi", r"\frac{22}{7}"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    (r"\pi", r"3, \pi"),
    (r"\sqrt{2}", r"\pm \sqrt{2}"),
    ("x=3", "y=3"),
    ("2x+3y=6", "0=0"),
    ("x^2", "x^3"),
    ("5 apples", "6 apples"),
]
UNREADABLE = [
    ("7", "between 0 and 10"),
    ("7", "between 0 and 7"),
    ("7", "a correct number between 0 and 10"),
    ("7", "5 or 7"),
    ("7", r"5 \text{ or } 7"),
    ("7", "5 = 7"),
    ("7", "x = 5 = 7"),
    ("x=3", "x=5=3"),
    ("15", "7 8"),  # math-verify: 15
    ("12", "1 2"),
    ("12", r"3 \cdot 4"),
    ("7", r"\int_0^7 1 dx"),
    (r"\pi", r"\int_0^{\pi} 1 dx"),
    (r"\pi", r"3 \quad \pi"),
    *((r"\pi", joint) for joint in (r"\pi \approx 3", r"3 \equiv \pi", r"\max(3,\pi)", r"\boxed{\pi}3", r"\fbox{\pi}3")),
    ("x^2", r"x^3 \in x^2"),
    ("7", r"\pm 7"),
    ("7", "７"),
    ("7", "\u200b7"),
    ("7", "$5$ $7$"),
    ("7", ""),
    ("7", "9^9^9^9"),
    ("3.14159", r"\pi"),  # a truth in digits wants digits
    ("x", r"\frac{x}{"),
    (r"\sqrt{2}", r"\sqrt{2} \text{ output 1}"),
]


@pytest.mark.parametrize(("truth", "answer"), EQUAL)
def test_equal(compared: Compared, truth: str, answer: str) -> None:
    """In any notation."""
    assert compared(truth, answer) == Verification(1.0, AnswerStatus.OK, answer)


@pytest.mark.parametrize(("truth", "answer"), DIFFERENT)
def test_different(compared: Compared, truth: str, answer: str) -> None:
    """Read, and not the truth."""
    assert compared(truth, answer) == Verification(0.0, AnswerStatus.OK, answer)


@pytest.mark.parametrize(("truth", "answer"), UNREADABLE)
def test_not_one_answer(compared: Compared, truth: str, answer: str) -> None:
    """Ranges, alternatives, second equations, unevaluated expressions, look-alikes, half of a formula."""
    assert compared(truth, answer) == Verification(0.0, AnswerStatus.UNREADABLE, answer)


def test_the_question_is_no_answer(compared: Compared) -> None:
    """Its expression given back equals the truth and earns nothing; the same expression elsewhere does."""
    assert compared("x^2+2x+1", "(x + 1)^2", "Expand $(x+1)^2$.").status is AnswerStatus.RESTATED
    assert compared("x^2+2x+1", "x^2+2x+1", "Is it $x^2+2x+1$?").score == 1
    assert compared("7", "7", "Which is larger, 5 or 7?").score == 1


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "(" * 400, "(x+1)^{1000000}"])
def test_nothing_hangs(compared: Compared, answer: str) -> None:
    """Arithmetic that no signal interrupts ends with its process, and the next comparison is as good as ever."""
    start = time.monotonic()
    assert compared(r"\sqrt{2} x", answer).status in (AnswerStatus.TIMEOUT, AnswerStatus.ERROR, AnswerStatus.UNREADABLE)
    assert time.monotonic() - start < TIMEOUT_S + 5
    assert compared(r"\sqrt{2} x", r"x \sqrt{2}").score == 1


def test_a_process_that_dies_is_an_error() -> None:
    """Whatever killed it; another takes its place."""
    held = MathVerifier(num_workers=1)
    problem = Problem(Domain.MATH, "?", "x+1", Contract.BOXED)
    assert held.compare(problem, "1+x").score == 1
    worker = held._workers._free.queue[0]
    assert worker is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    assert held.compare(problem, "1+x").status is AnswerStatus.ERROR
    assert held.compare(problem, "1+x").score == 1
    held.close()


def test_many_threads(verifier: MathVerifier) -> None:
    """Each gets its own answer back."""
    problems = [Problem(Domain.MATH, "?", f"x^{n}", Contract.BOXED) for n in range(2, 14)]
    answers = [f"x^{n} + 0x" if n % 2 else f"x^{n + 1} + 0x" for n in range(2, 14)]
    with ThreadPoolExecutor(6) as pool:
        scores = [found.score for found in pool.map(verifier.compare, problems, answers)]
    assert scores == [float(n % 2) for n in range(2, 14)]


def test_closed_and_used_again() -> None:
    """No process is left; a later comparison starts one."""
    held = MathVerifier(num_workers=1)
    problem = Problem(Domain.MATH, "?", "x+1", Contract.BOXED)
    assert held.compare(problem, "1+x").score == 1
    worker = held._workers._free.queue[0]
    assert worker is not None
    held.close()
    assert worker._process.poll() is not None
    assert held.compare(problem, "1+x").score == 1
    held.close()


def test_prose() -> None:
    """Words are; names of functions, commands and single letters are not."""
    assert [has_prose(t) for t in ("5 or 7", "x to y", r"\text{ or }", "about 7", "Between")] == [True] * 5
    assert [has_prose(t) for t in (r"\sin x", "sin x", r"\frac{ab}{2}", "2xy", r"\begin{pmatrix}1\end{pmatrix}")] == [False] * 5


def test_no_process_for_what_rules_decide() -> None:
    """A literal truth never leaves this process."""
    assert rule_verdict(Problem(Domain.MATH, "?", "7", Contract.BOXED), "9^{9^{9}}") is not None
    assert rule_verdict(Problem(Domain.MATH, "?", r"\pi", Contract.BOXED), "3.14159") is None
