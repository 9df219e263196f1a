"""Whoever prints an interval says which method made it: runs of different ages have different ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "studies").glob("*.md"))]
PAGES += sorted((ROOT / "eval" / "results").glob("*.md"))
_INTERVAL = re.compile(r"\d (?:% |points )?\[[-+]?\d+(?:\.\d+)?, [-+]?\d+(?:\.\d+)?\]")
_MARK = re.compile(r"^<!-- results: (?:closed_loop|injections|leaks|demo_judges) -->$", re.MULTILINE)
_METHOD = re.compile(r"bootstrap|Student's|Wilson|jackknife", re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_with_intervals_names_their_method(page: Path) -> None:
    """In its own text; tables that the documentation fills in count as intervals."""
    text = page.read_text(encoding="utf-8")
    if _INTERVAL.search(text) or _MARK.search(text):
        assert _METHOD.search(text), f"{page}: prints intervals; say by which method they were made"
