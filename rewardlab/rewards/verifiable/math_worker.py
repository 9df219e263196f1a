"""The process in which mathematics is compared: a JSON line in, a JSON line out, until its input ends.

It limits itself: an alarm whose default action ends the process, so that an orphan does not compute for ever, and memory.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify

MAX_MEMORY = 4 << 30  # bytes of address space
TOLERANCE = 1e-5  # relative, for a decimal of an irrational number
UNEVALUATED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)


def parse_expression(text: str) -> Any:
    """Return the one expression a text is, or None. No fallback to the last number or the raw text."""
    parsed = parse(f"${text}$", extraction_config=[LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    return parsed[0] if len(parsed) == 1 and not isinstance(parsed[0], str) else None


def is_decimal_of(decimal: Any, number: Any) -> bool:
    """Return whether ``decimal`` is a float within the tolerance of an irrational ``number``."""
    if not isinstance(decimal, sympy.Float) or getattr(number, "is_real", False) is not True or number.has(sympy.Float):
        return False
    exact = number.doit()
    return exact.is_rational is not True and bool(abs(decimal - exact.evalf(20)) < TOLERANCE * abs(exact.evalf(20)))


def compare(truth: str, answer: str) -> dict[str, object]:
    """Return ``{"status": ..., "same": ...}``. An answer left as an integral, sum or limit is unreadable unless the truth is
    one."""
    expected, actual = parse_expression(truth), parse_expression(answer)
    if expected is None:
        return {"status": "error", "same": False}
    if actual is None or (_is_unevaluated(actual) and not _is_unevaluated(expected)):
        return {"status": "unreadable", "same": False}
    same = verify(expected, actual, timeout_seconds=None, raise_on_error=True)
    same = same or is_decimal_of(actual, expected) or is_decimal_of(expected, actual)
    return {"status": "ok", "same": bool(same)}


def _is_unevaluated(expression: Any) -> bool:
    return bool(getattr(expression, "has", lambda *kinds: False)(*UNEVALUATED))


def run_worker() -> None:
    """Answer the comparisons that standard input asks for."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    print(json.dumps({"status": "ready"}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, job["timeout_s"] + 1)
        try:
            reply = compare(job["truth"], job["answer"])
        except Exception:  # the boundary: what a text does to the parser is a status
            reply = {"status": "error", "same": False}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    run_worker()
