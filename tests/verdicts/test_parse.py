"""The texts that judges really write, and what is read in each."""

from __future__ import annotations

import pytest

from rewardlab.errors import ConfigError
from rewardlab.types import Choice, Completion, FinishReason, VerdictStatus
from rewardlab.verdicts.parse import follows_format, opened_thinking, parse_verdict, verdict_of
from rewardlab.verdicts.places import reasoning_of

READ = [
    ("<think>a</think><answer>1</answer>", Choice.FIRST),
    ("<think>a</think>\n\n<answer> 2 </answer>\n", Choice.SECOND),
    ("<think>a</think><answer>1</answer>\nno: <answer>2</answer>", Choice.SECOND),
    ("<think>I would say <answer>1</answer> but</think><answer>2</answer>", Choice.SECOND),
    ("<answer>1</answer>", Choice.FIRST),
]
NOT_READ = [
    ("", VerdictStatus.EMPTY),
    (" \n", VerdictStatus.EMPTY),
    ("Response 1 is better", VerdictStatus.NO_VERDICT),
    ("<think>Response 1 is better. <answer>1</answer>", VerdictStatus.NO_VERDICT),
    ("<think><answer>1</answer></think>", VerdictStatus.NO_VERDICT),
    ("<think>a</think><answer>1", VerdictStatus.NO_VERDICT),
    ("<think>a</think><answer>1 or 2</answer>", VerdictStatus.NOT_A_CHOICE),
    ("<think>a</think><answer>12</answer>", VerdictStatus.NOT_A_CHOICE),
    ("<think>a</think><answer>Response 1</answer>", VerdictStatus.NOT_A_CHOICE),
    ("<think>a</think><answer>1.0</answer>", VerdictStatus.NOT_A_CHOICE),
    ("<think>a</think><answer>１</answer>", VerdictStatus.NOT_A_CHOICE),
    ("<think>a</think><answer></answer>", VerdictStatus.NOT_A_CHOICE),
]


@pytest.mark.parametrize(("text", "choice"), READ)
def test_read(text: str, choice: Choice) -> None:
    """The last answer after the reasoning counts."""
    assert parse_verdict(text, "think_answer").choice is choice


@pytest.mark.parametrize(("text", "status"), NOT_READ)
def test_not_read(text: str, status: VerdictStatus) -> None:
    """A status and no choice."""
    verdict = parse_verdict(text, "think_answer")
    assert (verdict.choice, verdict.status) == (None, status)


def test_unknown_convention() -> None:
    """Named, with those that exist."""
    with pytest.raises(ConfigError, match="think_answer"):
        parse_verdict("x", "letters")


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("<think>a</think><answer>1</answer>", True),
        (" <think>a\nb</think>\n<answer> 2 </answer>\n", True),
        ("<think> </think><answer>1</answer>", False),
        ("<think>a</think><answer>3</answer>", False),
        ("<think>a</think>so<answer>1</answer>", False),
        ("<think>a</think><answer>1</answer>!", False),
        ("<think>a<think>b</think><answer>1</answer>", False),
        ("<think>a</think><answer>1</answer><answer>1</answer>", False),
        ("<answer>1</answer>", False),
    ],
)
def test_format(text: str, follows: bool) -> None:
    """One non-empty reasoning, one answer of 1 or 2, nothing else."""
    assert follows_format(text) is follows


def test_thinking_that_the_prompt_opened() -> None:
    """It belongs to the completion of such a prompt, and of no other; of a recorded text the closing tag tells."""
    text = "\nThe first.\n</think>\n\n<answer>1</answer>"
    assert [follows_format(text, opened=opened) for opened in (True, False, None)] == [True, False, True]
    assert not follows_format(f"<think>{text}", opened=True)
    assert reasoning_of(text) == "The first."
    assert opened_thinking("<|im_start|>assistant\n<think>\n") == "<think>\n"
    assert opened_thinking("<think>a</think>\n") == opened_thinking("assistant\n") == ""


def test_reasoning() -> None:
    """The whole of it; nothing where it is not closed."""
    assert reasoning_of("<think> a </think>b</think><answer>1</answer>") == "a </think>b"
    assert reasoning_of("<think>a") == ""
    assert reasoning_of("a</think>") == "a"
    assert reasoning_of("a") == ""


def test_a_draw_that_did_not_end_has_its_own_status() -> None:
    """Whatever its text holds: failed, late, cut off."""
    text = "<think>x</think><answer>1</answer>"
    statuses = {FinishReason.ERROR: "error", FinishReason.TIMEOUT: "timeout", FinishReason.LENGTH: "truncated"}
    for finish, status in statuses.items():
        verdict = verdict_of(Completion(text, finish), "think_answer")
        assert (verdict.choice, verdict.status) == (None, VerdictStatus(status))
    assert verdict_of(Completion(text, FinishReason.STOP), "think_answer").choice is Choice.FIRST
