"""Reasons of bad rows for a person to read: of those that are alike a few, and how many more there are."""

from __future__ import annotations

import re
from collections import Counter

SHOWN = 5  # of a kind
_NUMBER = re.compile(r"\d+")


class ReasonCount:
    """Counts reasons by kind. Two are of one kind where they differ in numbers alone: of rows, of images, of files."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def is_shown(self, reason: str) -> bool:
        """Count a reason and return whether it is among the first of its kind."""
        kind = _NUMBER.sub("0", reason)
        self._first.setdefault(kind, reason)
        self._counts[kind] += 1
        return self._counts[kind] <= SHOWN

    def rest(self) -> list[str]:
        """Return a line for each kind that has more than what is shown."""
        return [
            f"and {number - SHOWN:,} more like: {self._first[kind]}" for kind, number in self._counts.items() if number > SHOWN
        ]
