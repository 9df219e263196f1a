"""Where a final answer stands: one place, or a status."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.rewards.audit.probes import place
from rewardlab.rewards.verifiable.extraction import MAX_ANSWER_CHARS, Contract, Extraction, Status, extract, solution_of

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
    (Contract.BOX, "7", Status.MISSING),
    (Contract.BOX, f"{OPEN}7{CLOSE}{OPEN}8{CLOSE}", Status.SEVERAL),
    (Contract.BOX, f"{OPEN}7{CLOSE}{OPEN}7{CLOSE}", Status.SEVERAL),
    (Contract.BOX, f"{OPEN}7{CLOSE}8{CLOSE}", Status.SEVERAL),
    (Contract.BOX, f"{OPEN}7{OPEN}8{CLOSE}{CLOSE}", Status.NESTED),
    (Contract.BOX, f"{OPEN}7", Status.UNCLOSED),
    (Contract.BOX, f"7{CLOSE}", Status.UNCLOSED),
    (Contract.BOX, f"{CLOSE}7{OPEN}", Status.UNCLOSED),
    (Contract.BOX, f"{OPEN} \n{CLOSE}", Status.EMPTY),
    (Contract.BOX, rf"{OPEN}7{CLOSE} \boxed{{7}}", Status.FOREIGN),
    (Contract.BOX, rf"{OPEN}\boxed{{7}}{CLOSE}", Status.FOREIGN),
    (Contract.BOXED, "", Status.MISSING),
    (Contract.BOXED, r"\boxed 7", Status.MISSING),
    (Contract.BOXED, r"\boxed{7} or \boxed{8}", Status.SEVERAL),
    (Contract.BOXED, r"\boxed 7 \boxed{8}", Status.SEVERAL),
    (Contract.BOXED, r"\boxed{\boxed{7}}", Status.NESTED),
    (Contract.BOXED, r"\boxed{7", Status.UNCLOSED),
    (Contract.BOXED, r"\boxed{7\}", Status.UNCLOSED),
    (Contract.BOXED, r"\boxed{}", Status.EMPTY),
    (Contract.BOXED, rf"\boxed{{7}}{OPEN}8{CLOSE}", Status.FOREIGN),
    (Contract.ANSWER, "<answer>7</answer><answer>8</answer>", Status.SEVERAL),
    (Contract.ANSWER, "<answer>7<answer>8</answer></answer>", Status.NESTED),
    (Contract.ANSWER, r"\boxed{8}<answer>7</answer>", Status.FOREIGN),
    (Contract.ANSWER, f"<answer>{'9' * (MAX_ANSWER_CHARS + 1)}</answer>", Status.TOO_LONG),
]


@pytest.mark.parametrize(("contract", "solution", "text"), FOUND)
def test_found(contract: Contract, solution: str, text: str) -> None:
    """The content as it stands, blanks at its ends aside."""
    assert extract(solution, contract) == Extraction(text, Status.OK)


@pytest.mark.parametrize(("contract", "solution", "status"), NOT_FOUND)
def test_not_found(contract: Contract, solution: str, status: Status) -> None:
    """A status and no text."""
    assert extract(solution, contract) == Extraction("", status)


@given(st.text(max_size=40).filter(lambda t: t.strip() and "\\" not in t and "{" not in t and "}" not in t and "<" not in t))
def test_what_is_put_in_comes_out(content: str) -> None:
    """One place in any surroundings without marks; two of them are several."""
    for contract in Contract:
        said = place(content, contract)
        assert extract(f"The answer: {said}. Done.", contract) == Extraction(content.strip(), Status.OK)
        assert extract(said + said, contract).status is Status.SEVERAL


THOUGHTS = [
    ("<think>a</think> b", True, "b"),
    ("\n<think>a\n</think>\nb ", True, "b"),
    ("b", False, "b"),
    ("b", True, None),
    ("<think>a</think>b", False, None),
    ("<think> </think>b", True, None),
    ("<think>a", True, None),
    ("a</think>b", True, None),
    ("<think>a</think><think>b</think>c", True, None),
    ("<think>a</think>b</think>c", True, None),
    ("Well: <think>a</think>b", True, None),
]


@pytest.mark.parametrize(("response", "thinking", "solution"), THOUGHTS)
def test_the_thinking_is_left_aside(response: str, thinking: bool, solution: str | None) -> None:
    """One thought at the start, closed and not empty; a model that does not think has no tags."""
    found = solution_of(response, thinking=thinking)
    assert found == (Extraction("", Status.BAD_FORMAT) if solution is None else Extraction(solution, Status.OK))


@pytest.mark.parametrize("part", [r"\boxed{", "{", "}", "\\", OPEN, CLOSE, "<answer>", "<think>", "</think>", "9", " "])
def test_a_million_characters_take_no_time(part: str) -> None:
    """No text makes the search quadratic."""
    text = part * (1_000_000 // len(part))
    start = time.perf_counter()
    solution_of(f"<think>a</think>{text}", thinking=True)
    for contract in Contract:
        extract(text, contract)
        extract(r"\boxed{" + text, contract)
    assert time.perf_counter() - start < 5
