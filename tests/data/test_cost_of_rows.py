"""The cost of reading a row, in calls of functions: unlike seconds, these are the same on each run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rewardlab.data.column_mapping import guess_mapping
from rewardlab.data.columns import AllowedColumns
from rewardlab.data.media import Files
from rewardlab.data.rows import from_row
from rewardlab.data.set_checks import SetCheck

QUESTION = "What is shown in picture 7? " * 8
ANSWERS = ("The first answer " * 30, "The second answer " * 30)


def num_calls(work: Callable[[], Any]) -> int:
    """Return how many functions, of Python and of C, are called by ``work``."""
    number = 0

    def count(_frame: Any, event: str, _function: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    work()  # what is done once is done
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return number


def _turns(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": answer}]


PLAIN = {"question": QUESTION, "responses": list(ANSWERS), "preferred": 1, "pair_id": "p"}
FORMS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": (PLAIN, 140),
    "parts": (PLAIN | {"responses": [[{"type": "text", "text": answer}] for answer in ANSWERS]}, 230),
    "prompt beside": (PLAIN | {"question": _turns("")[:1], "responses": [_turns(answer)[1:] for answer in ANSWERS]}, 240),
    "prompt within": (PLAIN | {"question": None, "responses": [_turns(answer) for answer in ANSWERS]}, 280),
}


@pytest.mark.parametrize("form", FORMS)
def test_calls_for_a_row(form: str) -> None:
    """An answer in parts, or a conversation, costs about twice what a text costs."""
    row, most = FORMS[form]
    files, columns = Files(), AllowedColumns()
    assert num_calls(lambda: from_row(row, index=0, files=files, columns=columns)) <= most


def test_calls_for_a_mapped_conversation() -> None:
    row = {"chosen": _turns(ANSWERS[0]), "rejected": _turns(ANSWERS[1])}
    mapping = guess_mapping(list(row), "file")
    assert mapping is not None
    assert num_calls(lambda: mapping.row_of(row, "file, row 0")) <= 220


def test_calls_for_the_check_of_a_set() -> None:
    """Answers that share their first word alone are not compared word by word."""
    pair, check = from_row(PLAIN, index=0), SetCheck()
    assert num_calls(lambda: check.add(pair, 0)) <= 45
