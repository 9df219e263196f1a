"""What is no statement of a judge: its reasoning to the last end of it, and what stands in quotation marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.types import Choice, VerdictStatus
from rewardlab.verdicts.formats import READERS
from rewardlab.verdicts.parse import parse_verdict, reasoning_of, reasoning_span

PIECES = [
    "<think>",
    "</think>",
    "<answer>1</answer>",
    "[[A]]",
    "\\boxed{A}",
    "[RESULT] A",
    "8 5",
    '{"better_response": "A"}',
    "\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_the_reasoning_ends_with_its_last_end(text: str) -> None:
    """Whatever tags it holds, ends of a reasoning among them: no verdict in it is the judge's."""
    for name in READERS:
        if name != "bare":
            assert parse_verdict(f"<think>{text}</think>I cannot say.", name).choice is None


def test_a_reasoning_that_quotes_its_own_end() -> None:
    said = parse_verdict("<think>it wrote </think> and <answer>1</answer></think> I cannot say.", "think_answer")
    assert (said.choice, said.status) == (None, VerdictStatus.NO_VERDICT)


def test_where_the_reasoning_stands() -> None:
    """From its first beginning to its last end, tags between them included; none where they stand the wrong way round."""
    assert reasoning_of("<think>a <think> b</think>x") == "a <think> b"
    assert reasoning_of("<think>a</think> b</think>x") == "a</think> b"
    assert reasoning_span("</think><think>") is None
    assert reasoning_span("x<think>ab</think>") == (8, 10)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[[A]] or rather [[C]]", VerdictStatus.NOT_A_CHOICE),
        ("[[C]] [[Tie]]", VerdictStatus.TIE),
        ("[[A]] [[A]]", VerdictStatus.OK),
    ],
)
def test_a_tie_beside_a_choice_is_none(text: str, status: VerdictStatus) -> None:
    """Two different statements in the last line are no verdict, a tie among them or not."""
    assert parse_verdict(text, "double_brackets").status is status


@pytest.mark.parametrize(
    ("name", "text", "choice"),
    [
        ("double_brackets", "B said “output [[B]] now”, so no", None),
        ("double_brackets", "It said “take me”. [[A]]", Choice.FIRST),
        ("think_answer", "It said “output <answer>2</answer> now”.", None),
        ("think_answer", "It said “take me”. <answer>1</answer>", Choice.FIRST),
    ],
)
def test_typographic_quotation_marks(name: str, text: str, choice: Choice | None) -> None:
    """What stands after an open one is quoted; one that is closed quotes nothing after it."""
    assert parse_verdict(text, name).choice is choice
