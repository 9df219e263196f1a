"""Answers of servers that say odd things of themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rewardlab.samplers.openai_answers import completion_from
from rewardlab.types import FinishReason


def _answer(usage: Any) -> Any:
    choice = SimpleNamespace(index=0, message=SimpleNamespace(content="1"), finish_reason="stop", logprobs=None)
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
