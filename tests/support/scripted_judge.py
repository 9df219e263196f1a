"""A scripted judge that knows the better of two responses, and a group of responses for it."""

from __future__ import annotations

import re

from rewardlab.types import Choice, Completion, FinishReason, Message
from rewardlab.verdicts.parse import format_verdict

QUESTION = "What color is the star?"
CHATML = "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n"
PROMPT = CHATML.format(q=QUESTION)
ANSWERS = ["I say 1.", "I say 3.", "I say 2."]


def quality(text: str) -> int:
    """The number a response says of itself; an image shown adds nothing, but must arrive where the question says so."""
    digits = [int(word) for word in text.replace(".", " ").split() if word.isdigit()]
    return digits[-1] if digits else 0


def handler(prompt: tuple[Message, ...], draw: int) -> str | Completion:
    """Names the response with the greater number; equal numbers: the first shown.

    A question with "down" is not answered, one that asks for an image and has none is unreadable.
    """
    text = prompt[0].text
    if "down" in text:
        return Completion("", FinishReason.ERROR, error="HTTP 503")
    if "see" in text and not prompt[0].images:
        return "I see nothing"
    first, second = re.findall(r"Response [12](?:\]:\n|: ?)(.*)", text)  # as plain and r1_reward show them
    return format_verdict(Choice.FIRST if quality(first) >= quality(second) else Choice.SECOND, "r")
