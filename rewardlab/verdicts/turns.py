"""Judgments of several turns: how one text is split into them, and what the user says between them.

A judgment is stored, read and rewarded as one text, whoever wrote its turns: a sampler, the rows of SFT, a rollout
of RL. Two kinds: a checklist whose verification is a second turn, and a judgment that looks again.

A judge looks again where a turn ends in ``<look>2: 25 0 50 25</look>``: the left, top, right and bottom edge of a part of the
second image shown, in percent of its width and height; without ``2:`` it is the first. The user's turn is then that part, at
the resolution of the image itself. Any other end of a turn ends the judgment, which fails unless it has a verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rewardlab.verdicts.checklist import join_turns, split_turns

MAX_LOOKS = 3
MIN_PART_PX, MOST_RATIO = 28, 20  # of a part: each side, and the longer by the shorter one; image processors refuse 200
_LOOK = re.compile(r"<look>\s*(?:([0-9]{1,2})\s*:)?\s*([0-9]{1,3})\s+([0-9]{1,3})\s+([0-9]{1,3})\s+([0-9]{1,3})\s*</look>")
_WHOLE = 100  # percent


@dataclass(frozen=True)
class Look:
    """A part of the image number ``image`` (from 0 on): left, top, right and bottom edge in percent, 0..100."""

    image: int
    box: tuple[int, int, int, int]

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return the edges in an image of this size. A part that is too small or too thin to be shown is widened."""
        left, top, right, bottom = self.box
        across = left * width // _WHOLE, math.ceil(right * width / _WHOLE)
        down = top * height // _WHOLE, math.ceil(bottom * height / _WHOLE)
        first, last = _widened(*across, width, (down[1] - down[0]) // MOST_RATIO)
        upper, lower = _widened(*down, height, (last - first) // MOST_RATIO)
        return first, upper, last, lower

    def __str__(self) -> str:
        return f"<look>{f'{self.image + 1}: ' if self.image else ''}{' '.join(map(str, self.box))}</look>"


def _widened(begin: int, end: int, whole: int, least: int) -> tuple[int, int]:
    """Return a stretch of ``whole`` px with the same middle, ``least`` px and :data:`MIN_PART_PX` long if there are so many."""
    length = min(whole, max(end - begin, least, MIN_PART_PX))
    begin = min(max(0, (begin + end - length) // 2), whole - length)
    return begin, begin + length


def read_look(turn: str) -> Look | None:
    """Return the look that a turn ends in, or its reasoning; None if it ends in anything else, in a part without area, or has
    several looks."""
    places = list(_LOOK.finditer(turn))
    if len(places) != 1 or turn[places[0].end() :].replace("</think>", "").strip():
        return None
    image, *edges = places[0].groups()
    left, top, right, bottom = map(int, edges)
    if not (left < right <= _WHOLE and top < bottom <= _WHOLE) or image in ("0", "00"):
        return None
    return Look(int(image or 1) - 1, (left, top, right, bottom))


def num_looks(judgment: str) -> int:
    """Return how many looks a judgment has written, whether or not it was shown the parts."""
    return len(_LOOK.findall(judgment))


@dataclass(frozen=True)
class Reply:
    """The user's turn: a part of an image (None: none), and the text behind it."""

    text: str
    look: Look | None = None


class JudgmentTurns(Protocol):
    """The turns of a judgment, of which it has ``most`` at most."""

    most: int

    def split(self, text: str) -> list[str]:
        """Return the judge's turns. Raise ValueError for what is no judgment of this kind."""
        ...

    def join(self, turns: Sequence[str]) -> str:
        """Return the judgment of some turns, as :meth:`split` splits it."""
        ...

    def reply(self, turns: Sequence[str], num_images: int) -> Reply | None:
        """Return what the user says after the ``turns`` so far about so many images; None if the judgment is at its end."""
        ...


@dataclass(frozen=True)
class CheckTurns:
    """A checklist: its checks, and after the ``followup`` their verification with the verdict."""

    followup: str
    most = 2

    def split(self, text: str) -> list[str]:
        return list(split_turns(text))

    def join(self, turns: Sequence[str]) -> str:
        return join_turns(*turns) if len(turns) > 1 else turns[0]

    def reply(self, turns: Sequence[str], num_images: int) -> Reply | None:
        return Reply(self.followup) if len(turns) < self.most else None


@dataclass(frozen=True)
class LookTurns:
    """A judgment that looks again, up to :data:`MAX_LOOKS` times; ``followup`` is the text behind each part of an image."""

    followup: str
    most = MAX_LOOKS + 1

    def split(self, text: str) -> list[str]:
        ends = [place.end() for place in _LOOK.finditer(text)]
        turns = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
        if len(ends) >= self.most or not turns[-1].strip() or not all(map(read_look, turns[:-1])):
            raise ValueError(f"{text[:60]!r} looks {len(ends)} times; expected up to {MAX_LOOKS} looks at parts with an area")
        return turns

    def join(self, turns: Sequence[str]) -> str:
        ends = [next(_LOOK.finditer(turn)).end() for turn in turns[:-1]]  # what an engine closes behind a look is no turn's
        return "".join([*(turn[:end] for turn, end in zip(turns[:-1], ends, strict=True)), turns[-1]])

    def reply(self, turns: Sequence[str], num_images: int) -> Reply | None:
        look = read_look(turns[-1]) if len(turns) < self.most else None
        return Reply(self.followup, look) if look is not None and look.image < num_images else None
