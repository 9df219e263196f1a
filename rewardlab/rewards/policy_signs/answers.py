"""What a policy's answers look like, whoever pays for them: how new their words are, how alike, how long the winning ones."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rewardlab.data.pair_table import light_pairs
from rewardlab.data.texts import words_of
from rewardlab.types import PreferencePair

MOST_TEXTS = 20_000  # of which the word pairs are remembered: novelty is read as a rise over a run's own beginning
RUN = 3  # words that stand one after another again: a repetition


class KnownWordPairs:
    """Which words stand one after another in some texts, their beginnings and ends included.

    Kept as sorted 32-bit hashes: of a million word pairs one new one in 4,000 passes for known.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        hashes = {number for text in texts for number in _word_pairs(words_of(text))}
        self._hashes = np.fromiter(sorted(hashes), np.uint32, len(hashes))

    def novelty(self, text: str) -> float:
        """Return the share (0..1) of a text's word pairs that none of the texts has. A text without words has one pair, of its
        beginning and its end."""
        pairs = np.array(_word_pairs(words_of(text)), np.uint32)
        if not len(self._hashes):
            return 1.0
        places = np.minimum(np.searchsorted(self._hashes, pairs), len(self._hashes) - 1)
        return float((self._hashes[places] != pairs).mean())


def known_answers(pairs: Sequence[PreferencePair], seed: int) -> KnownWordPairs:
    """Return the word pairs of the answers of a set, or of so many drawn ones that more would say little."""
    number = min(len(pairs), MOST_TEXTS // 2)
    drawn = set(random.Random(f"known answers {seed}").sample(range(len(pairs)), number))
    return KnownWordPairs(text for n, pair in light_pairs(pairs) if n in drawn for text in pair.responses)


def _word_pairs(words: Sequence[str]) -> list[int]:
    ends = ["", *words, ""]
    return [zlib.crc32(f"{first} {second}".encode()) for first, second in itertools.pairwise(ends)]


def answer_metrics(rows: Sequence[tuple[str, str, float | None]], known: KnownWordPairs | None = None) -> dict[str, float]:
    """Return what a batch of (prompt, answer, reward) looks like: ``answers/repetition``, ``answers/most_common``,
    ``answers/winners_length``, and ``answers/novelty`` and ``answers/new_winners`` where ``known`` is given. The empty answer
    is one that many prompts may get; the other measures are of the rest. A measure that nothing can be read of is left out."""
    common = most_common([row[0] for row in rows], [row[1] for row in rows])
    rows = [row for row in rows if row[1]]
    answers, rewards = [row[1] for row in rows], [row[2] for row in rows]
    measures = {
        "answers/repetition": _mean(map(repetition, answers)),
        "answers/most_common": common,
        "answers/winners_length": winners_length(answers, rewards),
    }
    if known:
        novelty = [known.novelty(answer) for answer in answers]
        measures |= {"answers/novelty": _mean(novelty), "answers/new_winners": new_winners(novelty, rewards)}
    return {name: value for name, value in measures.items() if value is not None}


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def repetition(text: str) -> float:
    """Return the share (0..1) of a text's runs of three words that stood in it before; 0 for one of three words or fewer."""
    words = words_of(text)
    runs = list(zip(*(words[n:] for n in range(RUN)), strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def most_common(prompts: Sequence[str], answers: Sequence[str]) -> float | None:
    """Return the share (0..1) of prompts that got the answer that most of them got, by its words; None of fewer than two."""
    answered = {(prompt, " ".join(words_of(answer))) for prompt, answer in zip(prompts, answers, strict=True)}
    if len(set(prompts)) < 2:
        return None
    return Counter(answer for _, answer in answered).most_common(1)[0][1] / len(set(prompts))


def new_winners(novelty: Sequence[float], rewards: Sequence[float | None]) -> float | None:
    """Return the share (0..1) of paid answers that have a new word pair and are paid well: more than the median, or the most
    that is paid where half of the answers or more are paid that. None of no paid ones.

    New words of an answer that is paid little are what a policy tries; those that are paid are what it learns. Where all are
    paid alike, none is paid well.
    """
    paid = [(reward, new > 0) for reward, new in zip(rewards, novelty, strict=True) if reward is not None]
    if not paid:
        return None
    pay = [reward for reward, _ in paid]
    median, most, least = float(np.median(pay)), max(pay), min(pay)
    well = [reward > median or least < reward == most for reward in pay]
    return _mean(float(is_new and pays) for (_, is_new), pays in zip(paid, well, strict=True))


def winners_length(answers: Sequence[str], rewards: Sequence[float | None]) -> float | None:
    """Return how many times as long, in words, the answers above the median reward are as the others; None where either half
    is empty or without words."""
    paid = [(reward, len(words_of(answer))) for answer, reward in zip(answers, rewards, strict=True) if reward is not None]
    median = float(np.median([reward for reward, _ in paid])) if paid else 0.0
    above, below = ([length for reward, length in paid if (reward > median) is wins] for wins in (True, False))
    return float(np.mean(above) / np.mean(below)) if above and sum(below) else None
