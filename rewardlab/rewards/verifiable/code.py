"""Does a program pass its tests? It runs in a child process that can do nothing but compute (:mod:`.code_worker`).

A test is a case of input and expected output, or an assertion ``assert f(2) == 4``, of which the child is given ``f(2)``
alone. The comparison takes place here: a program that patches ``==``, exits early or prints what a test runner would print
earns nothing.
"""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.rewards.verifiable.extraction import AnswerStatus
from rewardlab.rewards.verifiable.rules import Problem, Verification
from rewardlab.rewards.verifiable.workers import NUM_WORKERS, WorkerPool

MAX_CASES, MAX_EXPECTED = 100, 30_000  # tests of a program, and bytes of what one expects
WALL = 3  # by the clock, as a multiple of the seconds of CPU
REPLY_S = 5.0  # more than a case's own limit, for the process that starts and kills it
_STATUSES = {
    "unreadable": AnswerStatus.UNREADABLE,
    "timeout": AnswerStatus.TIMEOUT,
    "error": AnswerStatus.ERROR,
}


@dataclass(frozen=True)
class CodeTest:
    """What a program is given, and what it must return: the value of ``expression``, or, with None, what it prints for
    ``stdin``."""

    expression: str | None
    stdin: str
    expected: Any


def parse_tests(text: str) -> list[CodeTest]:
    """Return the cases of a truth: a JSON list of [stdin, stdout], or lines ``assert EXPRESSION == LITERAL``. Raise ValueError
    for another form, for a literal that JSON does not have, for outputs that are all empty or longer than a program's may be,
    and for none or more than :data:`MAX_CASES` cases."""
    try:
        rows = json.loads(text)
    except RecursionError as error:
        raise ValueError("tests are nested too deep") from error
    except ValueError:
        cases = _assertions(text)
    else:
        is_list = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 2 for row in rows)
        if not is_list or not all(isinstance(part, str) for row in rows for part in row):
            raise ValueError("tests as JSON are a list of [stdin, stdout], two strings each")
        cases = [CodeTest(None, given, expected) for given, expected in rows]
        if cases and not any(case.expected.strip() for case in cases):
            raise ValueError("tests that expect no output are passed by any program that prints nothing")
    if not 0 < len(cases) <= MAX_CASES:
        raise ValueError(f"{len(cases):,} tests; expected 1 to {MAX_CASES}")
    if any(len(json.dumps(case.expected, ensure_ascii=False).encode()) > MAX_EXPECTED for case in cases):
        raise ValueError(f"a test expects more than {MAX_EXPECTED:,} bytes, more than a program may answer")
    return cases


def _assertions(text: str) -> list[CodeTest]:
    cases = []
    try:
        for statement in ast.parse(text).body:
            cases.append(_assertion(statement))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"tests are no JSON and no Python: {error or type(error).__name__}") from error
    return cases


def _assertion(statement: ast.stmt) -> CodeTest:
    line = f"`{ast.unparse(statement)[:80]}`"
    test = statement.test if isinstance(statement, ast.Assert) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        raise ValueError(f"a test reads `assert f(2) == 4`, not {line}")
    if any(isinstance(node, (ast.Compare, ast.BoolOp, ast.Await, ast.Yield)) for node in ast.walk(test.left)):
        raise ValueError(f"{line}: its left side must not compare, or a program's own objects decide; write `assert f(2) == 4`")
    try:
        expected = json.loads(json.dumps(ast.literal_eval(test.comparators[0]), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{line}: == must be followed by a value that JSON has, such as 4, 'a', [1, 2] or None ({error})"
        ) from error
    return CodeTest(ast.unparse(test.left), "", expected)


def equal_values(value: Any, expected: Any) -> bool:
    """Return whether two JSON values are equal, where true is not 1 and 1 is 1.0."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(equal_values, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(equal_values(value[key], expected[key]) for key in expected)
    return isinstance(value, bool) == isinstance(expected, bool) and bool(value == expected)


def printed_lines(printed: str) -> list[str]:
    """Return the lines of an output without blanks at their ends and without empty lines at the end."""
    return [line.rstrip() for line in printed.rstrip().split("\n")]


class CodeVerifier:
    """Runs programs, for any number of threads, in ``num_workers`` processes (default: one per core). A program has
    ``timeout_s`` seconds of CPU for all its tests together, and three times as many by the clock."""

    def __init__(self, *, timeout_s: float = 2.0, num_workers: int = NUM_WORKERS) -> None:
        self.timeout_s = timeout_s
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("code_worker.py"))]
        self._workers = WorkerPool(command, num_workers)

    def compare(self, problem: Problem, answer: str) -> Verification:
        """Return 1 if a program passes every test of the truth, else 0. An exception within it is a wrong answer. A program
        that is not Python is UNREADABLE, one that takes too long TIMEOUT, one that exceeds its memory or dies ERROR. Raise
        ValueError for a truth that is no tests, and where a program cannot be confined."""
        left, wall = self.timeout_s, WALL * self.timeout_s
        for case in parse_tests(problem.truth):
            reply = self._run(answer, case, left, wall)
            if reply.get("status") == "unconfined":
                raise ValueError(
                    "programs cannot be run safely here: the filter of system calls needs Linux (seccomp) on x86_64 or "
                    "aarch64; leave out the pairs of category code"
                )
            left -= float(reply.get("seconds", left))
            wall -= float(reply.get("wall", wall))
            if (status := _STATUSES.get(str(reply.get("status")))) is not None:
                return Verification(0.0, status, answer)
            if not _passes(reply, case):
                return Verification(0.0, AnswerStatus.OK, answer)
        return Verification(1.0, AnswerStatus.OK, answer)

    def _run(self, program: str, case: CodeTest, timeout_s: float, wall_s: float) -> dict[str, Any]:
        job = {"program": program, "stdin": case.stdin, "timeout_s": timeout_s, "wall_s": wall_s}
        if case.expression is not None:
            job["expression"] = case.expression
        try:
            return self._workers.ask(job, wall_s + REPLY_S)
        except TimeoutError:
            return {"status": "timeout"}
        except (OSError, ValueError):
            return {"status": "error"}

    def close(self) -> None:
        """End the processes; a later comparison starts new ones."""
        self._workers.close()


def _passes(reply: dict[str, Any], case: CodeTest) -> bool:
    """Return whether a reply, which the program may have written itself, is what the case expects."""
    answer = reply.get("printed" if case.expression is None else "value")
    if reply.get("status") != "ok" or not isinstance(answer, str):
        return False
    if case.expression is None:
        return printed_lines(answer) == printed_lines(case.expected)
    try:
        return equal_values(json.loads(answer), case.expected)
    except ValueError:  # longer than an answer may be
        return False
