"""Ratings, the best of N, and orderings: read as they are written, in range, and fail-closed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.types import Choice, Completion, FinishReason, VerdictStatus
from rewardlab.verdicts.formats import reader_of
from rewardlab.verdicts.lists import LETTERS, LIST_FORMATS, SCALES, list_reading, write_list
from rewardlab.verdicts.parse import parse_verdict


def reading(text: str, list_format: str, num: int = 3) -> tuple[tuple[float, ...] | None, str]:
    read = list_reading(Completion(text, FinishReason.STOP), list_format, num)
    return read.scores, read.status.value


WHY = st.text(max_size=60).filter(lambda text: "<" not in text and "\n>" not in f"\n{text}")


@given(st.sampled_from(sorted(SCALES)), st.data(), WHY)
def test_ratings_are_read_as_they_are_written(name: str, data: st.DataObject, why: str) -> None:
    low, high = SCALES[name]
    rating = data.draw(st.integers(-5, high + 20))
    scores, status = reading(f"{why}\n{rating}", name, 1)
    assert scores == ((rating,) if low <= rating <= high else None)
    assert (status == "ok") == (scores is not None)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=26), WHY)
def test_orderings_are_read_as_they_are_written(scores: list[int], why: str) -> None:
    """The scores read rank the responses as those written; the best alone is the first of them."""
    num = len(scores)
    read, status = reading(write_list("ordering", scores, why), "ordering", num)
    assert status == "ok"
    assert read is not None
    assert all((a > b) == (x > y) for a, x in zip(scores, read, strict=True) for b, y in zip(scores, read, strict=True))
    assert reading(write_list("best", scores, why), "best", num)[0] == tuple(
        float(n == scores.index(max(scores))) for n in range(num)
    )


@pytest.mark.slow
@given(st.sampled_from(LIST_FORMATS), st.integers(1, 26), st.text(max_size=200) | st.text("[]ABC >=1234567890.\n"))
def test_any_text_is_read_or_not(name: str, num: int, text: str) -> None:
    """No text breaks a reader; what is read is one score for each response, within its range."""
    scores, status = reading(text, name, num)
    assert (scores is None) == (status != "ok")
    if scores is not None:
        low, high = SCALES.get(name, (0, num))
        assert len(scores) == num
        assert all(low <= score <= high for score in scores)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ordering", "[[B > A > C]]", ((1, 2, 0), "ok")),
        ("ordering", "so **[[b>a=c]]**.", ((0, 2, 0), "ok")),
        ("ordering", "[[A > B]]", (None, "not_a_choice")),
        ("ordering", "[[A > B > B]]", (None, "not_a_choice")),
        ("ordering", "[[A > B > C > D]]", (None, "not_a_choice")),
        ("ordering", "[[A > B > C]] or [[B > A > C]]", (None, "not_a_choice")),
        ("ordering", "[[A, B, C]]", (None, "not_a_choice")),
        ("ordering", "A > B > C", (None, "no_verdict")),
        ("ordering", "[[A > B > C]]\nor not", (None, "no_verdict")),
        ("ordering", "<think>[[A > B > C]]", (None, "no_verdict")),
        ("ordering", "<think>[[A > B > C]]</think>[[C > B > A]]", ((0, 1, 2), "ok")),
        ("best", "[[B]]", ((0, 1, 0), "ok")),
        ("best", "[[D]]", (None, "not_a_choice")),
        ("best", "[[A]] or [[B]]", (None, "not_a_choice")),
        ("best", "The best is A.", (None, "no_verdict")),
        ("rating", "7", (None, "no_verdict")),  # of three responses
        ("best", "", (None, "empty")),
    ],
)
def test_what_is_read(name: str, text: str, expected: tuple[tuple[float, ...] | None, str]) -> None:
    assert reading(text, name) == expected


def test_a_failed_draw_has_no_scores() -> None:
    for finish, status in (
        (FinishReason.LENGTH, "truncated"),
        (FinishReason.ERROR, "error"),
        (FinishReason.TIMEOUT, "timeout"),
    ):
        read = list_reading(Completion("[[A > B]]", finish), "ordering", 2)
        assert (read.scores, read.status) == (None, status)


def test_a_list_of_two_is_a_pair() -> None:
    assert parse_verdict("[[B > A]]", "ordering").choice is Choice.SECOND
    assert parse_verdict("[[A = B]]", "ordering").status is VerdictStatus.TIE
    assert parse_verdict("[[A]]", "best").choice is Choice.FIRST
    assert reader_of("rating")("7").status is VerdictStatus.NO_VERDICT
    assert len(LETTERS) == 26
