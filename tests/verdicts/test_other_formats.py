"""Answers that another format would read are told, with the format; those that none reads alike are not."""

from __future__ import annotations

import pytest

from rewardlab.types import Choice, Completion, FinishReason, Order, Vote
from rewardlab.verdicts.formats import READERS, WRITERS
from rewardlab.verdicts.other_formats import other_format, unread_texts
from rewardlab.verdicts.parse import parse_verdict, verdict_of


def texts_in(name: str, number: int) -> list[str]:
    return [WRITERS[name](Choice.FIRST if n % 2 else Choice.SECOND, f"reason {n}") for n in range(number)]


@pytest.mark.parametrize("name", sorted(set(READERS) - {"think_answer", "checklist"}))
def test_the_format_named_reads_the_answers(name: str) -> None:
    """Each of them, as the format that they were written in does."""
    texts = texts_in(name, 12)
    other = other_format([text for text in texts if parse_verdict(text, "think_answer").choice is None])
    assert other is not None
    assert (other.num_readable, other.num_unread, other.num_disputed) == (12, 12, 0)
    assert [parse_verdict(text, other.name).choice for text in texts] == [parse_verdict(text, name).choice for text in texts]
    assert f"all 12 answers without a verdict have one in the format {other.name}" in other.sentence("x")


def test_a_few_are_chance() -> None:
    """Nothing is said of less than a fifth, of less than three, and of answers that nothing reads."""
    assert other_format(["I cannot say."] * 100) is None
    assert other_format(texts_in("boxed", 2)) is None
    assert other_format(texts_in("boxed", 19) + ["I cannot say."] * 81) is None
    some = other_format(texts_in("boxed", 21) + ["I cannot say."] * 79)
    assert some is not None
    assert other_format(texts_in("boxed", 3), least=3) is not None  # as many as are asked for are enough
    assert "21 of 100 answers" in some.sentence("--template boxed reads them")


def test_formats_that_do_not_agree_name_no_flag() -> None:
    """A box of one answer and a sentence for the other: which is meant is for a person to see."""
    other = other_format([r"\boxed{A} and yet Response B is better." for _ in range(10)])
    assert other is not None
    assert other.num_disputed == 10
    assert "do not agree on 10" in other.sentence("--template boxed")
    assert "--template" not in other.sentence("--template boxed")


def test_answers_that_were_cut_off_or_failed_are_not_looked_at() -> None:
    """No format reads what is not there."""
    votes = []
    for finish in FinishReason:
        completion = Completion("so [[A]]", finish)
        votes.append(Vote(Order.GIVEN, verdict_of(completion, "think_answer"), completion))
    assert unread_texts(votes) == ["so [[A]]"]


def test_the_example_is_the_end_of_an_answer() -> None:
    """Its last sixty characters, on one line."""
    text = "x" * 100 + "\n\n  [[A]]"
    other = other_format([text] * 3)
    assert other is not None
    assert f"(such as ...{'x' * 54 + ' [[A]]'!r}): --template" in other.sentence("--template double_brackets")
