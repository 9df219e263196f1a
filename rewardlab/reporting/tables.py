"""How numbers and names stand in tables and on pages: percentages with their intervals, rows of Markdown, letters."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
RESPONSE_LETTERS = "AB"  # how pages and files for people call responses[0] and responses[1], in whatever order they are shown


def percent(value: float | None, digits: int = 1) -> str:
    """0.1234 as "12.3"; None as a dash."""
    return "–" if value is None else f"{round(100 * value, digits) + 0.0:.{digits}f}"


def signed(value: float | None, digits: int = 1) -> str:
    """0.1234 as "+12.3"; None as a dash. What rounds to 0 is +0.0, whichever side it is on."""
    return "–" if value is None else f"{round(100 * value, digits) + 0.0:+.{digits}f}"


def with_interval(accuracy: float, interval: Sequence[float] | None) -> str:
    """0.5 and (0.4, 0.6) as "50.0 [40.0, 60.0]"; None, of what cannot vary, as "50.0"."""
    if interval is None:
        return percent(accuracy)
    return f"{percent(accuracy)} [{percent(interval[0])}, {percent(interval[1])}]"


def _cells(values: Sequence[str]) -> str:
    """A row of a Markdown table; a bar within a cell is none of its borders, and no character of it commands a terminal."""
    return "| " + " | ".join(_CONTROLS.sub(" ", value.replace("|", "\\|")) for value in values) + " |"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [_cells(columns), "|" + "---|" * len(columns), *map(_cells, rows)]
