"""Made-up prose of a chosen length, and a tokenizer of Qwen's size for it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

VOCABULARY = 152_064  # entries of Qwen2.5-VL-7B's embedding
WORDS_PER_SENTENCE = (6, 22)
_STARTS = ("", "b", "br", "c", "ch", "d", "f", "fl", "g", "gr", "h", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "tr", "v")
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou", "ai")
_ENDS = ("", "", "n", "r", "s", "t", "l", "nd", "st", "ng", "ck", "m")


class Prose:
    """Sentences of made-up words whose frequencies fall by Zipf's law; the same for the same seed."""

    def __init__(self, seed: int = 0, *, num_words: int = 20_000, num_sentences: int = 20_000) -> None:
        dice = random.Random(seed)
        words = sorted({_word(dice) for _ in range(num_words)})
        dice.shuffle(words)
        frequencies = 1 / np.arange(1, len(words) + 1)
        ends = np.cumsum(frequencies / frequencies.sum())
        numbers = np.random.default_rng(seed)

        def sentence() -> str:
            places = np.searchsorted(ends, numbers.random(dice.randint(*WORDS_PER_SENTENCE)))
            return " ".join(words[min(place, len(words) - 1)] for place in places).capitalize() + "."

        self.sentences = [sentence() for _ in range(num_sentences)]

    def text(self, dice: random.Random, num_words: float) -> str:
        """Return sentences of about ``num_words`` words in all."""
        count = max(1, round(num_words * 2 / sum(WORDS_PER_SENTENCE)))
        return " ".join(dice.choices(self.sentences, k=count))

    def corpus(self) -> Iterator[str]:
        yield from self.sentences


def _word(dice: random.Random) -> str:
    syllables = dice.choices((1, 2, 3, 4), weights=(5, 4, 2, 0.5))[0]
    return "".join(dice.choice(_STARTS) + dice.choice(_VOWELS) + dice.choice(_ENDS) for _ in range(syllables))


def pad_vocabulary(tokenizer_file: Path, entries: int = VOCABULARY) -> None:
    """Add entries that no text makes to the byte-level BPE in a ``tokenizer.json``, the special tokens behind them as in
    Qwen's, until there are ``entries``. Raise ValueError for a vocabulary that is larger."""
    saved = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    vocabulary, specials = saved["model"]["vocab"], saved["added_tokens"]
    if (missing := entries - len(vocabulary) - len(specials)) < 0:
        raise ValueError(f"{tokenizer_file}: has {entries - missing:,} entries already, more than {entries:,}")
    unused = {f"<|unused_{number}|>": len(vocabulary) + number for number in range(missing)}
    vocabulary |= unused
    for number, token in enumerate(specials, start=len(vocabulary)):
        token["id"] = number
    tokenizer_file.write_text(json.dumps(saved, ensure_ascii=False), encoding="utf-8")
