"""A judge that checks its own judgment: what it is asked, and how its answer is read (PAG, arXiv 2506.10406, for judges).

After its judgment it is asked to verify it; only where it finds the judgment wrong is it asked for another. With two responses
to choose from, "wrong" names the other one, so that a revision is a free flip: a judge may learn to guess first and flip
later. Report the accuracy of the first judgment beside that of the last.
"""

from __future__ import annotations

import re

VERIFY = (
    "Check your judgment step by step against the image. If a step is mistaken, say which one and why, and end with "
    '"The judgment is wrong". If every step holds, end with "The judgment is correct".'
)
REVISE = "You found your judgment wrong. Look again and give the right judgment, in the same form."

CORRECT, WRONG = "The judgment is correct", "The judgment is wrong"
_SAID = re.compile(rf"({CORRECT})|({WRONG})", re.IGNORECASE)


def read_verification(text: str) -> bool | None:
    """True where the text finds the judgment correct, False where wrong; None where it says neither, or both."""
    said = {bool(match[1]) for match in _SAID.finditer(text)}
    return said.pop() if len(said) == 1 else None
