"""What is no statement of a judge: its reasoning to the last end of it, and what stands in quotation marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.types import Choice, Verdict, VerdictStatus
from rewardlab.verdicts.formats import READERS
from rewardlab.verdicts.parse import parse_verdict
from rewardlab.verdicts.places import after_thinking, is_quoted, last_line, reads_rest, reasoning_of, reasoning_span

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


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("plain", "plain"),
        ("</think>rest", "rest"),
        ("<think>a</think>b</think>c", "c"),
        ("<think>a</think>b<think>c", None),
        ("<think>", None),
    ],
)
def test_what_follows_the_reasoning(text: str, rest: str | None) -> None:
    """To its last end, which may stand at the very beginning; none where one was opened after it. A reader sees no more."""
    assert after_thinking(text) == rest
    read = reads_rest(lambda text: Verdict(None, VerdictStatus.OK, text))
    assert read(text).rule == ("unclosed_think" if rest is None else rest)


def test_a_reader_of_the_rest_is_described_as_the_reader() -> None:
    def read(text: str) -> Verdict:
        """What it reads."""
        return Verdict(None, VerdictStatus.TIE)

    assert reads_rest(read).__doc__ == "What it reads."


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("X", False),
        ("'X'", True),
        ("«X»", True),
        ("x 'X' x", True),
        ("' X. '", True),  # a blank within, and a full stop before the closing mark
        ("'  X'", False),  # two characters are looked at before it
        ("'X ..'", False),  # and three after it
        ("'XX'", False),  # a letter within is the place's no more
        ("a'X", False),
        ("X'a", False),
        ("a X'", False),
        ("' X", False),
        ('say "so X', True),
        ('say "so" X', False),
        ('say "so" and "so X', True),
        ('say "so\nX', False),  # of its own line only
        ("code `X", True),
        ("code `a` `b` X", False),
        ("code `a` `b` `X", True),
        ('" ' + "x" * 2100 + "X", True),  # however far back
        ('"' + "x" * 1990 + "X", True),
    ],
)
def test_what_stands_in_quotation_marks(text: str, quoted: bool) -> None:
    """The place of the X, between two marks or after one that its line leaves open."""
    place = text.index("X")
    assert is_quoted(text, place, place + 1) == quoted


def test_the_last_line() -> None:
    assert last_line("a\n\n  **b** \n\n") == "b"
    assert last_line("## _x_") == "x"
    assert last_line("") == ""
