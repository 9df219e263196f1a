"""Count pairs with media, and questions that mention an image that the pair does not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

LEAST_SHARE = 0.1  # of the questions of a set without media: a few mention images in passing

_MEDIUM = r"(?:image|picture|photo|photograph|screenshot|video)s?\b"
_MENTION = re.compile(
    r"<(?:image|img|video)\b"
    rf"|\b(?:in|from|of|at|on|see|describe|does|is|about) (?:the|this|that|these) (?:\w+ )?(?:{_MEDIUM}|figure\b|chart\b)"
    rf"|\b(?:this|the (?:given|provided|above|attached|following|shown)) {_MEDIUM}"
    r"|\b(?:pictured|depicted) (?:above|below|here|in)\b",
    re.IGNORECASE,
)


def mentions_media(question: str) -> bool:
    """Return whether the words of a question refer to an image or video that comes with it."""
    return bool(_MENTION.search(question))


@dataclass
class MediaCount:
    """A count over the pairs of a set; ``num_mentions``: questions without media that refer to an image or video,
    ``first_mention``: the number of the first."""

    num_pairs: int = 0
    num_with_media: int = 0
    num_mentions: int = 0
    first_mention: int = -1

    def add(self, pair: PreferencePair, number: int) -> None:
        """Count one pair."""
        self.num_pairs += 1
        if pair.images or pair.videos or any(pair.response_images):
            self.num_with_media += 1
        elif mentions_media(pair.question):
            self.first_mention = number if not self.num_mentions else self.first_mention
            self.num_mentions += 1

    def of(self, pairs: Iterable[PreferencePair]) -> Iterator[PreferencePair]:
        """Yield the pairs, and count them."""
        for number, pair in enumerate(pairs):
            self.add(pair, number)
            yield pair

    def notes(self) -> list[str]:
        """Return warnings: some pairs have media and others none, questions refer to missing images."""
        without, notes = self.num_pairs - self.num_with_media, []
        if without and self.num_with_media:
            notes.append(f"{without:,} of {self.num_pairs:,} pairs have no image")
        if self.num_mentions:
            notes.append(
                f"{self.num_mentions:,} questions without an image speak of one, row {self.first_mention:,} first; "
                "they are read without it"
            )
        return notes

    def refuse_missing(self, data: str) -> None:
        """Raise DataError if a question without media refers to an image while other pairs have media, or if a fraction of
        :data:`LEAST_SHARE` of the questions does in a set without media."""
        if self.num_mentions and (self.num_with_media or self.num_mentions >= LEAST_SHARE * self.num_pairs):
            raise DataError(
                f"{data}, row {self.first_mention}: the question mentions an image but the pair has none, as in "
                f"{self.num_mentions:,} of {self.num_pairs:,} pairs; give them in 'images', or --allow no-images"
            )

    def refuse_blind_set(self, data: str) -> None:
        """Raise DataError for a set without media of whose questions a fraction of :data:`LEAST_SHARE` refers to images."""
        if not self.num_with_media and self.num_mentions and self.num_mentions >= LEAST_SHARE * self.num_pairs:
            raise DataError(
                f"{data}: {self.num_mentions:,} of {self.num_pairs:,} questions mention an image (row {self.first_mention} "
                "first), but no pair has one, so a judge would learn to answer without "
                "looking; give the images in the column 'images', or "
                "--allow no-images if the set is text only"
            )
