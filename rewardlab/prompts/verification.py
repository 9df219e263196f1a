"""A judge verifies its own judgment: the prompts for it, and how the answer is read (PAG, arXiv 2506.10406, for judges).

After its judgment it is prompted to verify it, and only if it finds the judgment wrong to give another. With two responses
to choose from, "wrong" names the other one, so that a revision is a free flip: a judge may learn to guess first and flip
later. Report the accuracy of the first judgment beside that of the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rewardlab.prompts import load_text
from rewardlab.verdicts.turns import Reply

VERIFY, REVISE = load_text("verify.txt"), load_text("revise.txt")
CORRECT, WRONG = "The judgment is correct", "The judgment is wrong"
_FINDING = re.compile(rf"({CORRECT})|({WRONG})", re.IGNORECASE)


def read_verification(text: str) -> bool | None:
    """Return True if the text finds the judgment correct, False if wrong, None if it says neither or both."""
    findings = {bool(match[1]) for match in _FINDING.finditer(text)}
    return findings.pop() if len(findings) == 1 else None


class VerifyTurns:
    """The turns of a verified judgment: the judgment, its verification, and another judgment if it was found wrong."""

    most = 3

    def split(self, text: str) -> list[str]:
        return [text]

    def join(self, turns: Sequence[str]) -> str:
        """Return the last judgment."""
        return turns[-1] if len(turns) == self.most else turns[0]

    def reply(self, turns: Sequence[str], num_images: int) -> Reply | None:
        if len(turns) == 1:
            return Reply(VERIFY)
        return Reply(REVISE) if len(turns) < self.most and read_verification(turns[1]) is False else None
