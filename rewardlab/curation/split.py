"""Two parts of a set that share no picture: what is about one picture, or a copy of it, goes to the same side.

Pairs without pictures go by their question's words.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from rewardlab.curation.decontaminate import images_of, words_of
from rewardlab.curation.image_hashes import Limits, PictureIndex, picture
from rewardlab.types import PreferencePair


class Groups:
    """Numbers that belong together (union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def new(self) -> int:
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def root(self, one: int) -> int:
        while self._parent[one] != one:
            self._parent[one] = self._parent[self._parent[one]]
            one = self._parent[one]
        return one

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low


def groups_of(pairs: Iterable[PreferencePair], advance: Callable[[int], None], limits: Limits | None = None) -> list[int]:
    """The group of each pair, by its number: pairs of one picture (copied, re-encoded, resized) are in one group."""
    groups, index, questions, own = Groups(), PictureIndex[int](limits or Limits()), dict[tuple[str, ...], int](), []
    for pair in pairs:
        mine = groups.new()
        own.append(mine)
        for image in images_of(pair):
            seen = picture(image)
            for other in index.find(seen):
                groups.join(mine, other)
            index.put(seen, groups.root(mine), image)
        if not images_of(pair):
            groups.join(mine, questions.setdefault(tuple(words_of(pair.question)), mine))
        advance(1)
    return [groups.root(one) for one in own]


def held_out(groups: Sequence[int], share: float, seed: int) -> set[int]:
    """The groups of the smaller part: in an order that the seed draws, each that still fits into ``share`` (0..1) of the pairs.

    A group larger than what is left stays in the larger part, so that the smaller one may fall short, never exceed.
    """
    sizes = Counter(groups)
    room, chosen = int(share * len(groups)), set()
    for group in sorted(sizes, key=lambda one: hashlib.sha256(f"{seed} {one}".encode()).digest()):
        if sizes[group] <= room:
            chosen.add(group)
            room -= sizes[group]
    return chosen
