"""The question whether a reasoning supports its verdict: how another model is queried and read, and checked before a run.

Unlike in the released R1-Reward code, that model sees the question and the whole reasoning, not its last three lines.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import httpx

from rewardlab.errors import ConfigError, EndpointError
from rewardlab.prompts import load_text
from rewardlab.types import Choice, Completion, FinishReason
from rewardlab.verdicts.parse import verdict_label

PROMPT = load_text("consistency.txt")

_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_SLOT = re.compile(r"\{(question|reasoning|number)\}")


def consistency_prompt(question: str, reasoning: str, verdict: Choice) -> str:
    """The text to ask; braces in the question or reasoning are plain text."""
    values = {"question": question, "reasoning": reasoning, "number": verdict_label(verdict)}
    return _SLOT.sub(lambda match: values[match.group(1)], PROMPT)


def read_consistency(answer: str) -> int:
    """Return +1 for "1", -1 for "0", else 0. Blanks, a final full stop and ``<think>...</think>`` are ignored."""
    return {"1": 1, "0": -1}.get(_THINKING.sub("", answer).strip().rstrip("."), 0)


Ask = Callable[[str], Awaitable[Completion]]  # one prompt at temperature 0

_QUESTION = "Which colour has a clear sky at noon?"
_REASONING = "Response 1: the sky is blue, correct. Response 2: the sky is green, wrong."


async def refuse_pair_judge(base_url: str, api_key: str) -> None:
    """Raise ConfigError if ``base_url`` is a `rewardlab serve`: it judges pairs, under any model name, and answers nothing
    else."""
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            answer = await client.get(f"{base_url.rstrip('/')}/models", headers={"Authorization": f"Bearer {api_key}"})
            models = answer.json()["data"]
            owners = {model.get("owned_by") for model in models}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError):
        return
    if "rewardlab" in owners:
        raise ConfigError(
            f"{base_url}: is a `rewardlab serve`, a judge of pairs, which cannot tell whether a reasoning supports "
            "a verdict; serve a language model with `vllm serve MODEL`, and give its address"
        )


async def probe_checker(ask: Ask, name: str) -> None:
    """Ask about a reasoning that supports its verdict and one that contradicts it. Raise EndpointError, with the model's
    ``name``, if neither answer can be read."""
    problems = []
    for verdict in (Choice.FIRST, Choice.SECOND):
        answer = await ask(consistency_prompt(_QUESTION, _REASONING, verdict))
        if answer.failed:
            problems.append(f"failed ({answer.error})")
        elif read_consistency(answer.text):
            return
        else:
            cut = ", cut off at max_tokens" if answer.finish is FinishReason.LENGTH else ""
            problems.append(f"answered {answer.text!r:.80}{cut}")
    raise EndpointError(f"{name} {' and '.join(dict.fromkeys(problems))} instead of 0 or 1.")
