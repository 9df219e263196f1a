"""Which training pairs a benchmark already contains: the same or nearly the same image, prompt, or answer.

Images: :mod:`rewardlab.curation.image_hashes`. Texts: the Jaccard similarity of their word shingles, and whether a longer text
of a benchmark stands whole within another. Short texts ("What is in the image?") are everybody's and compared with nothing,
unless question and both responses are equal; a longer prompt about another image is told, and is no match; nor is an answer
that is anybody's, such as a refusal. What is said in other words, and a part of a text, are not found.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rewardlab.curation import image_hashes
from rewardlab.curation.image_hashes import Picture, PictureIndex, picture_of
from rewardlab.data.texts import words_of
from rewardlab.types import PreferencePair

OTHER_IMAGE = "prompt about another image"  # many ask the same of different pictures: told, but nothing the benchmark contains
BOILERPLATE = "boilerplate answer"  # a refusal, or what a benchmark has for several prompts: told, but no copy
SHARED = ("image", "prompt", "answer", "whole pair", OTHER_IMAGE, BOILERPLATE)
SHINGLE = 3  # words
WHOLE_SHINGLES, WHOLE_SHARE = 18, 0.9  # a text of 20 words and more stands in another that has so much of its shingles
REFUSAL_WORDS = 40  # a longer text that begins like a refusal says something of its own
SHORT_WORDS = 25  # an answer that two prompts share is boilerplate up to this length, one that three share at any

_REFUSAL = re.compile(
    r"^\W*(?:i(?:['’]m| am) (?:\w+ )?(?:sorry|unable|not able)|i (?:can(?:not|['’]t| not)|won['’]t)"
    r"|(?:sorry|unfortunately|apologies)\b|i apologi[sz]e|as an? (?:ai|artificial|language)|my apologies)",
    re.IGNORECASE,
)


def is_refusal_text(text: str) -> bool:
    """Return whether a text is a short refusal or apology, such as anybody may write to anything."""
    return bool(_REFUSAL.search(text)) and len(words_of(text)) <= REFUSAL_WORDS


@dataclass(frozen=True)
class MatchLimits:
    """When two things are the same: ``image_bits`` of 64 by which the hashes of one picture may differ, and the other
    ``image`` limits of :class:`rewardlab.curation.image_hashes.ImageLimits`; the least
    Jaccard ``similarity`` of texts (0..1), which must
    have ``least_words``.
    """

    image_bits: int = 8
    similarity: float = 0.7
    least_words: int = 8

    @property
    def image(self) -> image_hashes.ImageLimits:
        return image_hashes.ImageLimits(bits=self.image_bits)


@dataclass(frozen=True)
class BenchmarkPair:
    """One pair of a benchmark: ``name`` of the benchmark, ``row`` of its file."""

    name: str
    row: int
    pair: PreferencePair


@dataclass(frozen=True)
class Match:
    """Training pair ``index`` shares its ``what`` (one of :data:`SHARED`) with a benchmark's row.

    ``similarity`` is 1 for equal ones; of near images 1 - differing bits / 64, of near texts the Jaccard similarity, of a text
    within a longer one the share of it that is there, below 1.
    """

    index: int
    what: str
    name: str
    row: int
    similarity: float

    @property
    def contains(self) -> bool:
        """Whether it makes the training pair one that the benchmark contains."""
        return self.what not in (OTHER_IMAGE, BOILERPLATE)


def shingles(text: str) -> frozenset[str]:
    """Runs of three words, lower case, punctuation left out; a shorter text is one shingle."""
    words = words_of(text)
    return frozenset(" ".join(words[n : n + SHINGLE]) for n in range(max(1, len(words) - SHINGLE + 1)))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first | second)


class TextIndex:
    """The prompts, or the answers, of benchmarks, to look texts up in."""

    def __init__(self, texts: Sequence[tuple[str, int, str]], limits: MatchLimits) -> None:
        """``texts``: (benchmark, row, text)."""
        self._limits = limits
        self._rows: dict[frozenset[str], set[tuple[str, int]]] = defaultdict(set)
        for name, row, text in texts:
            if len(words_of(text)) >= limits.least_words:
                self._rows[shingles(text)].add((name, row))
        self._grams = list(self._rows)
        self._having: dict[str, list[int]] = defaultdict(list)  # shingle -> texts that have it
        for number, grams in enumerate(self._grams):
            for gram in grams:
                self._having[gram].append(number)

    def find(self, text: str) -> dict[tuple[str, int], float]:
        """Return rows with this text or nearly this text, and their similarity."""
        if len(words_of(text)) < self._limits.least_words:
            return {}
        grams, similarities = shingles(text), {}
        shared = Counter(number for gram in grams for number in self._having.get(gram, ()))
        for number, both in shared.items():
            similarity = both / (len(grams) + len(self._grams[number]) - both)
            share = both / len(self._grams[number])
            if similarity < self._limits.similarity and len(self._grams[number]) >= WHOLE_SHINGLES and share >= WHOLE_SHARE:
                similarity = min(share, 0.99)
            if similarity >= self._limits.similarity:
                similarities.update(dict.fromkeys(self._rows[self._grams[number]], similarity))
        return similarities


class Contamination:
    """Benchmarks, to look training pairs up in; ``advance`` hears of each of their images."""

    def __init__(self, benchmark_pairs: Sequence[BenchmarkPair], limits: MatchLimits, advance: Callable[[int], None]) -> None:
        self._pictures: PictureIndex[tuple[str, int]] = PictureIndex(limits.image, crops=True)
        for entry in benchmark_pairs:
            for image in pair_images(entry.pair):
                self._pictures.add(image, (entry.name, entry.row))
                advance(1)
        self._prompts = TextIndex([(entry.name, entry.row, entry.pair.question) for entry in benchmark_pairs], limits)
        common = _common_answers(benchmark_pairs)
        answers = [(entry.name, entry.row, text) for entry in benchmark_pairs for text in entry.pair.responses]
        self._answers = TextIndex([answer for answer in answers if answer[2] not in common], limits)
        self._boilerplate = TextIndex([answer for answer in answers if answer[2] in common], limits)
        self._whole: dict[tuple[object, ...], list[tuple[str, int]]] = defaultdict(list)
        for entry in benchmark_pairs:
            self._whole[_whole(entry.pair)].append((entry.name, entry.row))
        self._with_images = {(entry.name, entry.row) for entry in benchmark_pairs if entry.pair.images}

    def matches(self, index: int, pair: PreferencePair, pictures: Sequence[Picture] | None = None) -> list[Match]:
        """Return every match of training pair ``index``, best first; ``pictures``: of its images, None to compute them."""
        similarities: dict[tuple[str, str, int], float] = {}
        if pictures is None:
            pictures = [picture_of(image, views=True) for image in pair_images(pair)]
        lookups = [("image", self._pictures.find(picture)) for picture in pictures]
        lookups += [("prompt", self._prompts.find(pair.question))]
        lookups += [("answer", self._answers.find(text)) for text in pair.responses]
        lookups += [(BOILERPLATE, self._boilerplate.find(text)) for text in pair.responses]
        lookups.append(("whole pair", dict.fromkeys(self._whole.get(_whole(pair), ()), 1.0)))
        for what, hits in lookups:
            for (name, row), similarity in hits.items():
                other_image = what == "prompt" and pair.images and (name, row) in self._with_images
                key = (OTHER_IMAGE if other_image else what, name, row)
                similarities[key] = max(similarity, similarities.get(key, 0.0))
        ranked = sorted(similarities.items(), key=lambda item: (-item[1], item[0]))
        return [Match(index, what, name, row, similarity) for (what, name, row), similarity in ranked]


def _common_answers(benchmark_pairs: Sequence[BenchmarkPair]) -> set[str]:
    """Return the answers of benchmarks that are anybody's: refusals, and what stands under several different prompts."""
    prompts: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    texts = {text: tuple(words_of(text)) for entry in benchmark_pairs for text in entry.pair.responses}
    for entry in benchmark_pairs:
        for text in entry.pair.responses:
            prompts[texts[text]].add(tuple(words_of(entry.pair.question)))
    return {
        text
        for text, words in texts.items()
        if is_refusal_text(text) or len(prompts[words]) >= (2 if len(words) <= SHORT_WORDS else 3)
    }


def find_matches(
    pairs: Iterable[PreferencePair],
    benchmark_pairs: Sequence[BenchmarkPair],
    limits: MatchLimits,
    advance: Callable[[int], None],
) -> list[Match]:
    """Return every match of a training pair with a benchmark's row, best first within a pair; ``advance`` is called at each
    step.
    """
    index, matches = Contamination(benchmark_pairs, limits, advance), []
    for number, pair in enumerate(pairs):
        matches += index.matches(number, pair)
        advance(1)
    return matches


def _whole(pair: PreferencePair) -> tuple[object, ...]:
    """Return question and responses, however they are ordered, spaced and capitalised; of any length."""
    return tuple(words_of(pair.question)), frozenset(tuple(words_of(text)) for text in pair.responses)


def num_short(pairs: Sequence[PreferencePair], limits: MatchLimits) -> int:
    """Return the number of questions and responses that are too short to be compared."""
    return sum(len(words_of(text)) < limits.least_words for pair in pairs for text in (pair.question, *pair.responses))


def num_images(benchmark_pairs: Sequence[BenchmarkPair]) -> int:
    """Return how often a :class:`Contamination` will call ``advance``."""
    return sum(len(pair_images(entry.pair)) for entry in benchmark_pairs)


def num_steps(pairs: Sequence[PreferencePair], benchmark_pairs: Sequence[BenchmarkPair]) -> int:
    """Return how often :func:`find_matches` will call ``advance``."""
    return len(pairs) + num_images(benchmark_pairs)


def pair_images(pair: PreferencePair) -> tuple[bytes, ...]:
    return (*pair.images, *pair.response_images[0], *pair.response_images[1])


def summary(matches: Sequence[Match]) -> dict[str, dict[str, int]]:
    """Count by benchmark the training pairs that share each of :data:`SHARED`, those it contains, and the rows of it that hold
    these.
    """
    counts_by_benchmark: dict[str, dict[str, int]] = {}
    for name in sorted({match.name for match in matches}):
        hits = [match for match in matches if match.name == name]
        counts = {what: len({m.index for m in hits if m.what == what}) for what in SHARED}
        counts["contained"] = len({m.index for m in hits if m.contains})
        counts["benchmark_rows"] = len({m.row for m in hits if m.contains})
        counts_by_benchmark[name] = counts
    return counts_by_benchmark
