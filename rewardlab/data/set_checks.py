"""Count what is wrong with the pairs of a set: missing media, and texts that are no texts any more."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from rewardlab.errors import DataError
from rewardlab.prompts.sanitize import break_control_tokens
from rewardlab.types import PreferencePair

LEAST_SHARE = 0.1  # of the questions of a set without media: a few mention images in passing

_MEDIUM = r"(?:image|picture|photo|photograph|screenshot|video)s?\b"
_BEFORE = ("in", "from", "of", "at", "on", "see", "describe", "does", "is", "about")
_AHEAD = "|".join(rf"(?<=\b{word} th)" for word in _BEFORE)
# In lower case. Each begins with its rarest letters: a search for a constant beginning is many times as fast as for a choice.
_MENTIONS = tuple(
    re.compile(mention)
    for mention in (
        r"<(?:image|img|video)\b",
        r"pict(?:(?<=\bpict)ur|(?<=\bdepict))ed (?:above|below|here|in)\b",
        rf"th(?:{_AHEAD})(?:e|is|at|ese) (?:\w+ )?(?:{_MEDIUM}|figure\b|chart\b)",
        rf"th(?<=\bth)(?:is|e (?:given|provided|above|attached|following|shown)) {_MEDIUM}",
    )
)
_WORDS = ("image", "img", "picture", "photo", "screenshot", "video", "figure", "chart", "depict")  # one is in each mention


def mentions_media(question: str) -> bool:
    """Return whether the words of a question refer to an image or video that comes with it."""
    words = question.lower()
    return any(word in words for word in _WORDS) and any(mention.search(words) for mention in _MENTIONS)


MOST_BROKEN = 0.01  # of the pairs of a set
NO_IMAGES, BROKEN_TEXTS = CHECKS = ("no-images", "broken-texts")  # what --allow switches off
SHORT = 24  # characters
_LOST = re.compile(r"nan|null|undefined|<na>|nat", re.IGNORECASE)  # an empty value, written as text
_WRITTEN = re.compile(
    r"""[\[{(]\s*'(?:role|from|content|value|text|type|bytes|path)'\s*:|\[\s*\{\s*['"](?:role|from|type)['"]\s*:|b['"]\\x"""
    r"""|<[\w.]+ object at 0x"""
)
_SENTINEL = re.compile(r"\[(?:deleted|removed|redacted|pad)\]|<\|?(?:endoftext|end_of_text|pad|unk)\|?>", re.IGNORECASE)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")


def what_is_broken(pair: PreferencePair) -> str:
    """Return what has gone wrong with the texts of a pair on their way here, "" if nothing is seen."""
    for name, text in (("question", pair.question), ("response", pair.responses[0]), ("response", pair.responses[1])):
        is_short = len(text) < SHORT
        if not is_short and text.isascii() and text[0] not in "[{(b< \n":
            continue  # nothing below can be so, and most texts are
        plain = text.strip()
        if is_short and (_LOST.fullmatch(plain) or (name == "question" and plain == "None")):
            return f"a {name} is {plain!r}, an empty value written as text"
        if is_short and _SENTINEL.fullmatch(plain):
            return f"a {name} is {plain!r}, a placeholder and no text"
        if plain[:1] in "[{(b<" and _WRITTEN.match(plain):
            return f"a {name} is a value of Python written as text: {plain[:40]!r}"
        if not plain.isascii() and not _INVISIBLE.sub("", plain).strip():
            return f"a {name} has invisible characters alone"
    first, second = pair.responses
    if (
        _begin_alike(first, second)
        and not any((*pair.response_images, *pair.response_videos))
        and _plain(first) == _plain(second)
    ):
        return "the responses differ in blanks, invisible characters or the form of Unicode alone"
    return ""


def _begin_alike(first: str, second: str) -> bool:
    """Return whether two texts may be the same but for blanks and characters: most differ in their first letters."""
    one, two = ("".join(text.lstrip()[:SHORT].split()) for text in (first, second))
    return not (one.isascii() and two.isascii()) or one.startswith(two) or two.startswith(one)


def _plain(text: str) -> list[tuple[int, list[str]]]:
    """Return the words of each line and its indentation, which means something in code."""
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    return [(len(line) - len(line.lstrip()), line.split()) for line in text.strip().splitlines() if line.strip()]


def tie_note(num_ties: int, num_pairs: int) -> str:
    """Return the sentence that counts the ties of a set to learn from, "" without any. Raise DataError if all are ties."""
    if num_ties and num_ties == num_pairs:
        raise DataError(f"all {num_pairs:,} pairs are ties; training needs pairs with a better response")
    return f"{num_ties:,} of {num_pairs:,} pairs are ties, which are not trained on" if num_ties else ""


@dataclass
class SetCheck:
    """A count over the pairs of a set; ``num_mentions``: questions without media that refer to an image or video,
    ``first_mention``: the number of the first. ``num_broken``: see :func:`what_is_broken`;
    ``num_with_tokens``: judgments that quote control tokens of chat templates, which training breaks."""

    num_pairs: int = 0
    num_with_media: int = 0
    num_mentions: int = 0
    first_mention: int = -1
    num_broken: int = 0
    first_broken: str = ""
    num_with_tokens: int = 0

    def add(self, pair: PreferencePair, number: int) -> None:
        """Count one pair."""
        self.num_pairs += 1
        if broken := what_is_broken(pair):
            self.num_broken += 1
            self.first_broken = self.first_broken or f"row {number}: {broken}"
        self.num_with_tokens += bool(pair.judgment) and break_control_tokens(pair.judgment) != pair.judgment
        if pair.images or pair.videos or any((*pair.response_images, *pair.response_videos)):
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
        """Return warnings: media are missing in some pairs, or texts have gone wrong."""
        without, notes = self.num_pairs - self.num_with_media, []
        if without and self.num_with_media:
            notes.append(f"{without:,} of {self.num_pairs:,} pairs have no image")
        if self.num_mentions:
            notes.append(
                f"{self.num_mentions:,} questions without an image speak of one, row {self.first_mention:,} first; "
                "they are read without it"
            )
        if self.num_broken:
            notes.append(f"{self.num_broken:,} pairs have gone wrong on their way; {self.first_broken}")
        if self.num_with_tokens:
            notes.append(
                f"{self.num_with_tokens:,} judgments quote control tokens of chat templates, such as <|im_end|>: training "
                "breaks each by a zero-width space, as in prompts"
            )
        return notes

    def refuse_broken(self, data: str, allow: Collection[str] = ()) -> None:
        """Raise DataError if more than a fraction of :data:`MOST_BROKEN` of the pairs has gone wrong, unless ``allow`` has
        :data:`BROKEN_TEXTS`."""
        if self.num_broken > MOST_BROKEN * self.num_pairs and BROKEN_TEXTS not in allow:
            raise DataError(
                f"{data}, {self.first_broken}; so or alike are {self.num_broken:,} of {self.num_pairs:,} pairs: write the set "
                f"anew from its source, leave these pairs out, or --allow {BROKEN_TEXTS} if the texts are meant to be so"
            )

    def refuse_missing(self, data: str) -> None:
        """Raise DataError if a question without media refers to an image while other pairs have media, or if a fraction of
        :data:`LEAST_SHARE` of the questions does in a set without media."""
        if self.num_mentions and (self.num_with_media or self.num_mentions >= LEAST_SHARE * self.num_pairs):
            raise DataError(
                f"{data}, row {self.first_mention}: the question mentions an image but the pair has none, as in "
                f"{self.num_mentions:,} of {self.num_pairs:,} pairs; give them in 'images', or --allow {NO_IMAGES}"
            )

    def refuse_blind_set(self, data: str) -> None:
        """Raise DataError for a set without media of whose questions a fraction of :data:`LEAST_SHARE` refers to images."""
        if not self.num_with_media and self.num_mentions and self.num_mentions >= LEAST_SHARE * self.num_pairs:
            raise DataError(
                f"{data}: {self.num_mentions:,} of {self.num_pairs:,} questions mention an image (row {self.first_mention} "
                "first), but no pair has one, so a judge would learn to answer without "
                f"looking; give the images in the column 'images', or --allow {NO_IMAGES} if the set is text only"
            )
