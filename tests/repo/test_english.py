"""Habits of language that a pattern can see: each may become rarer, never more frequent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
START = r"(?:^|[.:;!?] +|\| |- )"  # of a sentence, a table's cell or an item
HABITS = {  # a pattern, and how often it occurs at most
    START + r"Of (?!course\b)[a-z`]": 11,
    START + r"Where (?![^.?]*\?)": 18,
    START + r"What (?![^.?]*\?)": 89,
    r"\b(?:is|are|was|were|be|been) asked\b": 66,
    r"\b(?:is|are|was|were|be|been) paid\b": 8,
    r"\b(?:is|are|was|were|be|been) (?:told|said)\b": 22,
    r"\b(?:goes|go) on\b": 7,
    r"\b(?:stands?|lies)\b": 74,
    r"\b(?:as ever|nobody|beside)\b": 97,
}


def prose_of_page(path: Path) -> str:
    """The text without code and without what the documentation fills in."""
    return re.sub(r"^```.*?^```|`[^`\n]*`|<!--.*?-->", "`", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def prose_of_module(path: Path) -> Iterator[str]:
    """Docstrings, and every string of several words: help, errors, sentences of reports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield re.sub(r"`+[^`]*`+", "`", node.value)


def texts() -> dict[Path, str]:
    modules = {path: "\n\n".join(prose_of_module(path)) for path in (ROOT / "rewardlab").rglob("*.py")}
    return modules | {path: prose_of_page(path) for path in PAGES}


@pytest.fixture(scope="module")
def prose() -> dict[Path, str]:
    found = {path.relative_to(ROOT): re.sub(r"(?<!\n)\n(?!\n) *", " ", text) for path, text in texts().items()}
    assert len(found) > 300
    return found


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_becomes_rarer(habit: str, prose: dict[Path, str]) -> None:
    places = [
        f"{path}: ...{text[max(0, found.start() - 20) : found.end() + 60]}"
        for path, text in prose.items()
        for found in re.finditer(habit, text, re.MULTILINE)
    ]
    assert len(places) <= HABITS[habit], f"{len(places)} times, at most {HABITS[habit]}:\n" + "\n".join(places)
