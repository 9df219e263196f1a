"""Numbers as answers write them, read exactly and with plain ASCII digits only.

``float`` and ``\\d`` would also take "７", "٧", "inf" and "1_000"; here a text is one number or none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

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
    """Return the exact value of a number written out: 7, -1,234.5, .5, 1e-3, 3\\times10^{5}, 1/2, \\frac12, 1\\frac{1}{2}.

    None for all else, also for sums, products, powers, ranges, lists and words: an unevaluated expression is no numeral.
    Blanks are left aside except between digits ("1 2" is two numbers).
    """
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
