"""A scripted judge that writes checklists: the greater number is more accurate, the smaller one better style."""

from __future__ import annotations

import re

from rewardlab.types import Choice, Message
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding, supported_choice, write_checks
from tests.support.scripted_judge import quality

CRITERIA = [{"name": "accuracy", "weight": 2}, "style"]
REVERSED = ["accuracy", {"name": "style", "weight": 3, "description": "the smaller number"}]
_CRITERION = re.compile(r"^- (\w+), weight ([\d.]+)", re.MULTILINE)


def checking(prompt: tuple[Message, ...], draw: int) -> str:
    """ClaimCheck each response by each criterion of the prompt, or by accuracy."""
    text = prompt[0].text
    first, second = re.findall(r"Response [12](?:\]:\n|: ?)(.*)", text)[:2]
    numbers = {Choice.FIRST: quality(first), Choice.SECOND: quality(second)}
    checks = []
    for name, weight in _CRITERION.findall(text) or [("", 1)]:
        pick = min if name == "style" else max
        for choice, number in numbers.items():
            finding = ClaimFinding.TRUE if number == pick(numbers.values()) else ClaimFinding.FALSE
            checks.append(ClaimCheck(choice, f"{number} is the better number", finding, name, float(weight)))
    verdict = 2 if supported_choice(checks) is Choice.SECOND else 1
    return f"<think>{write_checks(checks)}\n</think><answer>{verdict}</answer>"
