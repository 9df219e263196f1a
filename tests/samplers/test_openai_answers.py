"""Answers of servers that say odd things of themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rewardlab.samplers.openai_answers import completion_from, failed_completion
from rewardlab.types import FinishReason


def _answer(usage: Any, reason: Any = "stop") -> Any:
    choice = SimpleNamespace(index=0, message=SimpleNamespace(content="1"), finish_reason=reason, logprobs=None)
    return SimpleNamespace(choices=[choice], usage=usage)


ODD = {"100": 100, None: 0, -5: 0, float("inf"): 0, float("nan"): 0, "many": 0, 1.5: 1, 1e30: 2**31 - 1, 7: 7}


@pytest.mark.parametrize(("said", "counted"), ODD.items())
def test_counts_of_tokens_are_whole_numbers_from_0_on(said: Any, counted: int) -> None:
    """A good answer is kept whatever a server says that it cost."""
    usage = SimpleNamespace(
        prompt_tokens=said, completion_tokens=said, prompt_tokens_details=SimpleNamespace(cached_tokens=said)
    )
    completion = completion_from(_answer(usage))
    assert (completion.text, completion.finish) == ("1", FinishReason.STOP)
    assert (completion.num_tokens, completion.num_prompt_tokens, completion.num_cached_tokens) == (counted,) * 3


@pytest.mark.parametrize("reason", [["stop"], {"a": 1}, 3])
def test_a_reason_that_is_no_text(reason: Any) -> None:
    """Nobody knows whether it is the whole answer: a failure, which is billed."""
    completion = completion_from(_answer(SimpleNamespace(prompt_tokens=9, completion_tokens=2), reason))
    assert (completion.finish, completion.num_tokens, completion.num_prompt_tokens) == (FinishReason.ERROR, 2, 9)
    assert repr(reason) in completion.error


def test_why_there_are_no_choices() -> None:
    """In the server's words, which may come with status 200."""
    said = completion_from(SimpleNamespace(choices=None, usage=None, error={"message": "out of credit"}))
    assert (said.finish, said.error) == (FinishReason.ERROR, "garbled answer: it has no choices ({'message': 'out of credit'})")
    assert completion_from("<html>").error == "garbled answer: it has no choices"


def test_half_a_character_of_a_refusal() -> None:
    """It cannot be stored, and a server may cut its sentence there."""
    assert failed_completion(FinishReason.ERROR, "cannot take \ud83d").error == "cannot take ?"
    assert failed_completion(FinishReason.ERROR, "\U0001f600" * 600).error == "\U0001f600" * 500
