"""Two parts of a set that share no picture: what is about one picture, or a copy of it, goes to the same side.

Pairs without pictures go by their question's words.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from rewardlab.curation.decontaminate import pair_images
from rewardlab.curation.image_hashes import ImageLimits, PictureIndex, picture_of
from rewardlab.data.texts import words_of
from rewardlab.types import PreferencePair


class Groups:
    """Numbers that belong together (union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def new(self) -> int:
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def root(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self.root(first), self.root(second)))
        self._parent[high] = low


def picture_groups(
    pairs: Iterable[PreferencePair], advance: Callable[[int], None], limits: ImageLimits | None = None
) -> list[int]:
    """Return the group of each pair, by its number: pairs of one picture (copied, re-encoded, resized) are in one group."""
    groups, index = Groups(), PictureIndex[int](limits or ImageLimits())
    questions, numbers = dict[tuple[str, ...], int](), list[int]()
    for pair in pairs:
        number = groups.new()
        numbers.append(number)
        for image in pair_images(pair):
            picture = picture_of(image)
            for other in index.find(picture):
                groups.join(number, other)
            index.put(picture, groups.root(number), image)
        if not pair_images(pair):
            groups.join(number, questions.setdefault(tuple(words_of(pair.question)), number))
        advance(1)
    return [groups.root(number) for number in numbers]


def hold_out_groups(groups: Sequence[int], share: float, seed: int) -> set[int]:
    """Return the groups of the smaller part: in an order that the seed draws, each that still fits into ``share`` (0..1) of the
    pairs.

    A group larger than what is left stays in the larger part, so that the smaller one may fall short, never exceed.
    """
    sizes = Counter(groups)
    room, held_back = int(share * len(groups)), set()
    for group in sorted(sizes, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest()):
        if sizes[group] <= room:
            held_back.add(group)
            room -= sizes[group]
    return held_back
