"""Pairs of one set that repeat each other, or share a picture.

Repeated pairs: candidates by MinHash (locality-sensitive: eight bands of eight), confirmed by the exact Jaccard similarity of
the question and of each response, by the pictures, and by the files of videos; about 2 kB are kept of a pair. Groups that share
a picture, or a copy of it, stay together when a set is split.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

import numpy as np
from datasketch import MinHash

from rewardlab.curation.decontaminate import SHINGLE, pair_images
from rewardlab.curation.image_hashes import ImageLimits, Picture, PictureIndex, picture_of
from rewardlab.data.texts import words_of
from rewardlab.types import PreferencePair

BANDS, ROWS = 8, 8  # finds 99 % of what is alike by 0.9, and looks at 38 % of what is by 0.7
FEW = 32  # candidates that are compared one by one
QUESTION_BITS, RESPONSES_BITS = 128, 256  # of a pair in PairBits


@dataclass(frozen=True, slots=True)
class PictureSketch:
    """The hashes of a picture, its mean colour, and its 8 by 8 thumbnail minus that colour, as whole levels."""

    pixels: bytes
    bits: int
    colour: np.ndarray
    small: np.ndarray

    @staticmethod
    def of(picture: Picture) -> PictureSketch:
        small = picture.small.reshape(8, 4, 8, 4, 3).mean((1, 3))
        bits = int.from_bytes(picture.bits.tobytes())
        return PictureSketch(picture.pixels, bits, picture.colour.astype(np.uint8), small.round().astype(np.int16))

    def is_near(self, other: PictureSketch, limits: ImageLimits) -> bool:
        """Compare as :meth:`rewardlab.curation.image_hashes.Picture.is_near` does, more coarsely."""
        if self.pixels == other.pixels:
            return True
        if (self.bits ^ other.bits).bit_count() > limits.bits:
            return False
        shift = np.abs(self.colour.astype(np.int16) - other.colour).max()
        contrast = max(1.0, float(np.abs(self.small).mean()), float(np.abs(other.small).mean()))
        return bool(shift <= limits.shift and np.abs(self.small - other.small).mean() / contrast <= limits.change)


@dataclass(frozen=True, slots=True)
class EarlierPair:
    """A pair that later ones may repeat."""

    pair_id: str
    texts: tuple[np.ndarray, np.ndarray, np.ndarray]  # of question and responses
    pictures: tuple[PictureSketch, ...]
    preferred: int | None
    videos: tuple[bytes, ...] = ()  # hashes of the files, sorted


@dataclass(frozen=True)
class Duplicate:
    """An earlier pair, and whether it prefers the other response."""

    pair_id: str
    contradicts: bool


def grams_of(text: str) -> np.ndarray:
    """Return hashes of a text's runs of three words, [N] uint32, or the hash of a shorter text."""
    words = np.array([crc32(word.encode(errors="replace")) for word in words_of(text)], dtype=np.uint64)
    if len(words) < SHINGLE:
        return np.array([crc32(words.tobytes())], dtype=np.uint32)
    mixed = (words[:-2] * np.uint64(0x9E3779B1) + words[1:-1]) * np.uint64(0x85EBCA77) + words[2:]
    return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)


class PairBits:
    """Bits of each pair that rule out most pairs which it cannot repeat, thousands at a time: to compare the pairs of one
    template one by one takes quadratic time.

    Two texts of a similarity ``s`` differ in at most ``(1 - s) / (1 + s)`` of their triples, and therefore in at most as many
    bits. ``_bits`` [N, 8]: media, first picture, question, responses. ``_sizes`` [N, 2]: triples of question and responses.
    """

    def __init__(self, similarity: float) -> None:
        self._most = (1 - similarity) / (1 + similarity)
        self._bits = np.zeros((64, 2 + (QUESTION_BITS + RESPONSES_BITS) // 64), dtype=np.uint64)
        self._sizes = np.zeros((64, 2))

    def put(self, number: int, pair: EarlierPair) -> None:
        """Store the bits of pair ``number``; numbers come in their order, from 0."""
        if number == len(self._bits):
            self._bits = np.concatenate([self._bits, np.zeros_like(self._bits)])
            self._sizes = np.concatenate([self._sizes, np.zeros_like(self._sizes)])
        media = hashlib.sha256(b"".join((str(len(pair.pictures)).encode(), *pair.videos))).digest()[:8]
        self._bits[number, 0] = int.from_bytes(media)
        self._bits[number, 1] = pair.pictures[0].bits if pair.pictures else 0
        self._bits[number, 2:4] = _bitmap(pair.texts[0], QUESTION_BITS)
        self._bits[number, 4:] = _bitmap(np.concatenate(pair.texts[1:]), RESPONSES_BITS)
        self._sizes[number] = len(pair.texts[0]), len(pair.texts[1]) + len(pair.texts[2])

    def candidates(self, number: int, others: int | array[int] | None) -> Sequence[int]:
        """Return those of the ``others`` that pair ``number`` may repeat, in their order."""
        if not isinstance(others, array):
            return () if others is None else (others,)
        if len(others) <= FEW:
            return others
        bits, sizes, kept = self._bits[number], self._sizes[number], np.frombuffer(others, dtype=np.uint32)
        kept = kept[self._bits[kept, 0] == bits[0]]  # a copy: an array that is viewed cannot grow
        for columns, text in ((slice(1, 2), None), (slice(2, 4), 0), (slice(4, None), 1)):
            most = ImageLimits().bits if text is None else self._most * (sizes[text] + self._sizes[kept, text]) + 1e-6
            kept = kept[np.bitwise_count(self._bits[kept, columns] ^ bits[columns]).sum(1) <= most]
        return list(kept.tolist())


def _bitmap(grams: np.ndarray, num_bits: int) -> np.ndarray:
    """Return [num_bits / 64] words with the bits of hashes set."""
    flags = np.zeros(num_bits, dtype=bool)
    flags[grams % num_bits] = True
    return np.packbits(flags).view(np.uint64)


class Duplicates:
    """Pairs so far. ``similarity``: least Jaccard similarity (0..1) of two pairs' word triples."""

    def __init__(self, similarity: float = 0.9) -> None:
        self._similarity = similarity
        self._kept: list[EarlierPair] = []
        self._numbers: dict[int, int | array[int]] = {}  # by the hash of a band; most have one, without an array
        self._pair_bits = PairBits(similarity)
        self._empty = MinHash(num_perm=BANDS * ROWS, seed=1, hashfunc=_itself)

    def find_or_add(self, pair: PreferencePair, pictures: Sequence[Picture]) -> Duplicate | None:
        """Return the earlier pair that this one repeats, or add this one and return None."""
        question, first, second = (np.unique(grams_of(text)) for text in (pair.question, *pair.responses))
        sketches, texts = tuple(map(PictureSketch.of, pictures)), (question, first, second)
        videos = sorted(hashlib.sha256(video).digest() for video in chain(pair.videos, *pair.response_videos))
        candidate = EarlierPair(pair.pair_id, texts, sketches, pair.preferred, tuple(videos))
        keys = self._keys(np.unique(np.concatenate(candidate.texts)))
        self._pair_bits.put(len(self._kept), candidate)
        compared: set[int] = set()
        for key in keys:
            for number in self._pair_bits.candidates(len(self._kept), self._numbers.get(key)):
                if number in compared:
                    continue
                compared.add(number)
                if (duplicate := self._repeats(self._kept[number], candidate)) is not None:
                    return duplicate
        for key in keys:
            self._add(key, len(self._kept))
        self._kept.append(candidate)
        return None

    def _add(self, key: int, number: int) -> None:
        others = self._numbers.get(key)
        if isinstance(others, array):
            others.append(number)
        else:
            self._numbers[key] = number if others is None else array("I", (others, number))

    def _keys(self, grams: np.ndarray) -> list[int]:
        """Return the hash of each band. If the hashes of two bands collide, their pairs are compared all the same."""
        sketch = self._empty.copy()
        sketch.update_batch(grams.tolist())
        values = sketch.hashvalues.reshape(BANDS, ROWS)
        return [hash((n, row.tobytes())) for n, row in enumerate(values)]

    def _repeats(self, earlier: EarlierPair, candidate: EarlierPair) -> Duplicate | None:
        """Compare questions, pictures, and each response with both of the other pair's."""
        limits = ImageLimits()
        if earlier.videos != candidate.videos:
            return None
        if len(earlier.pictures) != len(candidate.pictures) or not self._alike(earlier.texts[0], candidate.texts[0]):
            return None
        straight = self._alike(earlier.texts[1], candidate.texts[1]) and self._alike(earlier.texts[2], candidate.texts[2])
        crossed = self._alike(earlier.texts[1], candidate.texts[2]) and self._alike(earlier.texts[2], candidate.texts[1])
        if not (straight or crossed):
            return None
        if not all(old.is_near(new, limits) for old, new in zip(earlier.pictures, candidate.pictures, strict=True)):
            return None
        if straight and crossed:  # all four are alike, so labels cannot be compared
            return Duplicate(earlier.pair_id, contradicts=False)
        labelled = None not in (earlier.preferred, candidate.preferred)
        return Duplicate(earlier.pair_id, contradicts=labelled and (earlier.preferred == candidate.preferred) != straight)

    def _alike(self, first: np.ndarray, second: np.ndarray) -> bool:
        num_shared = len(np.intersect1d(first, second, assume_unique=True))
        return num_shared / (len(first) + len(second) - num_shared) >= self._similarity


def _itself(value: int) -> int:
    return value


class Groups:
    """Union-find over numbers."""

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


def picture_groups(pairs: Iterable[PreferencePair], advance: Callable[[int], None]) -> list[int]:
    """Return the group of each pair, by its number: pairs of one picture (copied, re-encoded, resized) are in one group."""
    groups, index = Groups(), PictureIndex[int](ImageLimits())
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
    """Return the groups to hold out: in a random order by ``seed``, each that still fits into the fraction ``share`` of the
    pairs. The held-out part may be smaller than ``share``, never larger."""
    sizes = Counter(groups)
    room, held_back = int(share * len(groups)), set()
    for group in sorted(sizes, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest()):
        if sizes[group] <= room:
            held_back.add(group)
            room -= sizes[group]
    return held_back
