"""Answers without a verdict that another format would read: a judge that speaks otherwise than it was taken to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.types import VerdictStatus, Vote
from rewardlab.verdicts.formats import READERS
from rewardlab.verdicts.parse import parse_verdict

MOST_TEXTS = 2000  # looked at, for the time it takes
LEAST_SHARE, LEAST_NUMBER = 0.2, 3  # of the unread answers; fewer are chance
UNREAD = (VerdictStatus.NO_VERDICT, VerdictStatus.NOT_A_CHOICE)


@dataclass(frozen=True)
class OtherFormat:
    """``name`` is the format that reads most of ``num_unread`` answers, ``num_readable`` of them; ``example`` is one.

    ``num_disputed`` of the unread ones are read by several formats, and not alike.
    """

    name: str
    num_readable: int
    num_unread: int
    num_disputed: int
    example: str

    def sentence(self, cure: str) -> str:
        """Return what to say of it; ``cure`` is the flag, or command, that reads these answers."""
        ending = " ".join(self.example.split())[-60:]
        is_all = self.num_readable == self.num_unread
        number = f"all {self.num_unread:,}" if is_all else f"{self.num_readable:,} of {self.num_unread:,}"
        start = f"{number} answers without a verdict have one in the format {self.name} (such as ...{ending!r})"
        if self.num_disputed:
            return f"{start}, but formats do not agree on {self.num_disputed:,} of them: look at the answers first"
        return f"{start}: {cure}"


def unread_texts(votes: Sequence[Vote]) -> list[str]:
    """Return the texts of whole answers in which no verdict was read, at most :data:`MOST_TEXTS`."""
    return [vote.completion.text for vote in votes if vote.verdict.status in UNREAD][:MOST_TEXTS]


def other_format(texts: Sequence[str], least: int = LEAST_NUMBER) -> OtherFormat | None:
    """Return the format that reads most of ``texts``, answers without a verdict; None where none reads a fifth of them and
    ``least``.

    Of formats that read as many the one with the stricter form comes first.
    """
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    num_disputed = 0
    for text in texts:
        choices = {name: parse_verdict(text, name).choice for name in READERS}
        readable = {name: choice for name, choice in choices.items() if choice is not None}
        num_disputed += len(set(readable.values())) > 1
        counts.update(readable.keys())
        for name in readable:
            examples.setdefault(name, text)
    if not counts:
        return None
    name = max(READERS, key=lambda reader: counts[reader])
    if counts[name] < max(least, LEAST_SHARE * len(texts)):
        return None
    return OtherFormat(name, counts[name], len(texts), num_disputed, examples[name])
