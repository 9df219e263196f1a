"""The two judgments that the quickstart's page begins with, and its words."""

from __future__ import annotations

from rewardlab.benchmarks.browser import JudgmentView
from rewardlab.demo.page import MAIN_ROWS, WORDS, two_judgments
from rewardlab.demo.summary import SUMMARY_ROWS


def view(row: int, *kinds: str) -> JudgmentView:
    return JudgmentView(row, str(row), "g", list(kinds), "q", ["a", "b"], 0, "", [], [[], []], 2, 1, "", [])


def test_one_of_each_sort() -> None:
    """The first that is right in both orders, and the first that changes with the order; none is made up."""
    views = [view(0, "wrong"), view(1, "wrong", "flipped"), view(2, "right"), view(3, "right"), view(4, "wrong", "flipped")]
    assert [(meaning, one.row) for meaning, one in two_judgments(views)] == [
        ("Right in both orders", 2),
        ("Another winner in the other order", 1),
    ]
    assert [one.row for _, one in two_judgments(views[2:4])] == [2]
    assert two_judgments([]) == []


def test_every_row_is_explained() -> None:
    """Six rows above the fold; each name of the table has a sentence."""
    names = [name for name, _ in SUMMARY_ROWS]
    assert len(MAIN_ROWS) == 6
    assert set(MAIN_ROWS) <= set(names)
    assert {"majority of N" if name.startswith("majority") else name.strip() for name in names} == set(WORDS)
