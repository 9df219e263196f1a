"""Where a final answer stands: one place, or a status."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.rewards.verifiable.extraction import (
    MAX_ANSWER_CHARS,
    AnswerStatus,
    Contract,
    Extraction,
    extract,
    place,
    solution_of,
)

OPEN, CLOSE = "<|begin_of_box|>", "<|end_of_box|>"

FOUND = [
    (Contract.BOX, f"So {OPEN} 7 {CLOSE}.", "7"),
    (Contract.BOX, f"<answer>So {OPEN}7{CLOSE}</answer>", "7"),
    (Contract.BOXED, r"\boxed{7}", "7"),
    (Contract.BOXED, r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    (Contract.BOXED, r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (Contract.BOXED, r"\boxed{\left\{x\right.}", r"\left\{x\right."),
    (Contract.BOXED, r"<answer>\boxed{7}</answer>", "7"),
    (Contract.ANSWER, "<answer>\n7\n</answer>", "7"),
]
NOT_FOUND = [
    (Contract.BOX, "7", AnswerStatus.MISSING),
    (Contract.BOX, f"{OPEN}7{CLOSE}{OPEN}8{CLOSE}", AnswerStatus.SEVERAL),
    (Contract.BOX, f"{OPEN}7{CLOSE}{OPEN}7{CLOSE}", AnswerStatus.SEVERAL),
    (Contract.BOX, f"{OPEN}7{CLOSE}8{CLOSE}", AnswerStatus.SEVERAL),
    (Contract.BOX, f"{OPEN}7{OPEN}8{CLOSE}{CLOSE}", AnswerStatus.NESTED),
    (Contract.BOX, f"{OPEN}7", AnswerStatus.UNCLOSED),
    (Contract.BOX, f"7{CLOSE}", AnswerStatus.UNCLOSED),
    (Contract.BOX, f"{CLOSE}7{OPEN}", AnswerStatus.UNCLOSED),
    (Contract.BOX, f"{OPEN} \n{CLOSE}", AnswerStatus.EMPTY),
    (Contract.BOX, rf"{OPEN}7{CLOSE} \boxed{{7}}", AnswerStatus.FOREIGN),
    (Contract.BOX, rf"{OPEN}\boxed{{7}}{CLOSE}", AnswerStatus.FOREIGN),
    (Contract.BOXED, "", AnswerStatus.MISSING),
    (Contract.BOXED, r"\boxed 7", AnswerStatus.MISSING),
    (Contract.BOXED, r"\boxed{7} or \boxed{8}", AnswerStatus.SEVERAL),
    (Contract.BOXED, r"\boxed 7 \boxed{8}", AnswerStatus.SEVERAL),
    (Contract.BOXED, r"\boxed{\boxed{7}}", AnswerStatus.NESTED),
    (Contract.BOXED, r"\boxed{7", AnswerStatus.UNCLOSED),
    (Contract.BOXED, r"\boxed{7\}", AnswerStatus.UNCLOSED),
    (Contract.BOXED, r"\boxed{}", AnswerStatus.EMPTY),
    (Contract.BOXED, rf"\boxed{{7}}{OPEN}8{CLOSE}", AnswerStatus.FOREIGN),
    (Contract.ANSWER, "<answer>7</answer><answer>8</answer>", AnswerStatus.SEVERAL),
    (Contract.ANSWER, "<answer>7<answer>8</answer></answer>", AnswerStatus.NESTED),
    (Contract.ANSWER, r"\boxed{8}<answer>7</answer>", AnswerStatus.FOREIGN),
    (Contract.ANSWER, f"<answer>{'9' * (MAX_ANSWER_CHARS + 1)}</answer>", AnswerStatus.TOO_LONG),
]


@pytest.mark.parametrize(("contract", "solution", "text"), FOUND)
def test_found(contract: Contract, solution: str, text: str) -> None:
    """The content as it stands, blanks at its ends aside."""
    assert extract(solution, contract) == Extraction(text, AnswerStatus.OK)


@pytest.mark.parametrize(("contract", "solution", "status"), NOT_FOUND)
def test_not_found(contract: Contract, solution: str, status: AnswerStatus) -> None:
    """A status and no text."""
    assert extract(solution, contract) == Extraction("", status)


@given(st.text(max_size=40).filter(lambda t: t.strip() and "\\" not in t and "{" not in t and "}" not in t and "<" not in t))
def test_what_is_put_in_comes_out(content: str) -> None:
    """One place in any surroundings without marks; two of them are several."""
    for contract in Contract:
        said = place(content, contract)
        assert extract(f"The answer: {said}. Done.", contract) == Extraction(content.strip(), AnswerStatus.OK)
        assert extract(said + said, contract).status is AnswerStatus.SEVERAL


THOUGHTS = [
    ("<think>a</think> b", True, "b"),
    ("\n<think>a\n</think>\nb ", True, "b"),
    ("b", False, "b"),
    ("b", True, None),
    ("<think>a</think>b", False, None),
    ("<think> </think>b", True, None),
    ("<think>a", True, None),
    ("</think>b", True, None),
    ("<think>a</think><think>b</think>c", True, None),
    ("<think>a</think>b</think>c", True, None),
    ("Well: <think>a</think>b", True, None),
]


def test_thinking_that_the_prompt_opened() -> None:
    found = [solution_of("a</think>b", thinking=True, opened=opened) for opened in (True, False, None)]
    assert [extraction.status for extraction in found] == [AnswerStatus.OK, AnswerStatus.BAD_FORMAT, AnswerStatus.OK]


@pytest.mark.parametrize(("response", "thinking", "solution"), THOUGHTS)
def test_the_thinking_is_left_aside(response: str, thinking: bool, solution: str | None) -> None:
    """One thought at the start, closed and not empty; a model that does not think has no tags."""
    found = solution_of(response, thinking=thinking)
    assert found == (Extraction("", AnswerStatus.BAD_FORMAT) if solution is None else Extraction(solution, AnswerStatus.OK))


@pytest.mark.parametrize("part", [r"\boxed{", "{", "}", "\\", OPEN, CLOSE, "<answer>", "<think>", "</think>", "9", " "])
def test_a_million_characters_take_no_time(part: str) -> None:
    """No text makes the search quadratic."""
    text = part * (1_000_000 // len(part))
    start = time.process_time()
    solution_of(f"<think>a</think>{text}", thinking=True)
    for contract in Contract:
        extract(text, contract)
        extract(r"\boxed{" + text, contract)
    assert time.process_time() - start < 5
