"""Does the reasoning support the verdict? The question asked of another model, and how its answer is read.

Unlike the released R1-Reward code, the judge sees the question and the whole reasoning, not the last three lines of it.
"""

from __future__ import annotations

import re

from rewardlab.prompts import load_text
from rewardlab.types import Choice
from rewardlab.verdicts.parse import verdict_label

PROMPT = load_text("consistency.txt")

_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_SLOT = re.compile(r"\{(question|reasoning|number)\}")


def consistency_prompt(question: str, reasoning: str, verdict: Choice) -> str:
    """The text to ask; braces in the question or reasoning are plain text."""
    values = {"question": question, "reasoning": reasoning, "number": verdict_label(verdict)}
    return _SLOT.sub(lambda match: values[match.group(1)], PROMPT)


def read_consistency(answer: str) -> int:
    """+1 for "1", -1 for "0"; 0 for anything else (no vote, not a guess).

    Surrounding blanks, a final stop, and the ``<think>...</think>`` of a model that thinks first are left aside.
    """
    return {"1": 1, "0": -1}.get(_THINKING.sub("", answer).strip().rstrip("."), 0)
