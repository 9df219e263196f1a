"""How many tokens a sample will be: by the processor's own count, from the sizes of images alone."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import Image

from rewardlab.models.families import count_image_tokens, count_text_tokens, most_image_tokens
from rewardlab.prompts import Template, build_messages
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.samplers.hf import chat_of, special_tokens
from rewardlab.types import Message, Order, PreferencePair

MOST_WORDS, LONGEST_WORD = 1 << 18, 32  # words that are remembered, and characters of one: some 30 MB at the most


@dataclass(frozen=True)
class SampleTokens:
    """Tokens of one sample: of its text (prompt, and the answer it is trained on), of its images, and left for an answer."""

    pair_id: str
    text: int
    images: int
    num_images: int
    answer: int

    @property
    def total(self) -> int:
        return self.text + self.images + self.answer


class _WordTokens(dict[str, int]):
    """Tokens of words with the space before them; of one that is not known its bytes, for a token is at least one."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normalizer = None if backend is None else backend.normalizer

    def __missing__(self, word: str) -> int:
        return self.bytes_of(word) + 1

    def bytes_of(self, word: str) -> int:
        """Return the bytes of a word, or of what the tokenizer makes of it where those are more: some characters have no
        composed form, and under NFC become two or three."""
        num_bytes = len(word.encode())
        return num_bytes if self._normalizer is None else max(num_bytes, len(self._normalizer.normalize_str(word).encode()))


class TokenCounter:
    """Counts without decoding an image: its size is in its first bytes."""

    def __init__(self, processor: Any) -> None:
        self._processor, self._specials = processor, special_tokens(processor.tokenizer)
        self._by_size: dict[tuple[int, int], int] = {}
        self._by_word = _WordTokens(processor.tokenizer)

    def images(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Count the tokens of images of (height, width) px."""
        all_sizes = list(sizes)
        new = sorted({size for size in all_sizes if size not in self._by_size})
        if new:
            self._by_size |= dict(zip(new, count_image_tokens(self._processor, new), strict=True))
        return sum(self._by_size[size] for size in all_sizes)

    def render(self, prompt: Sequence[Message]) -> str:
        """Return a prompt as its model reads it, a mark for each image."""
        chat = chat_of(prompt, self._specials)
        return str(self._processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def texts(self, rendered: Sequence[str], answers: Sequence[str], num_images: Sequence[int]) -> list[int]:
        """Count the tokens of rendered prompts and the answers behind them; of an image only the marks around it count."""
        return count_text_tokens(self._processor, rendered, [self.learnt(answer) for answer in answers], num_images)

    def learnt(self, answer: str) -> str:
        """Return an answer as the model is trained on it."""
        return completion_to_learn(answer, self._specials)

    def texts_at_most(self, texts: Sequence[str]) -> list[int]:
        """Bound the tokens of texts from above, many times faster than they are counted: by the sum of those of their words,
        each counted once with the space before it.

        The first word, without a space before it, and those that are not remembered count by their bytes, so that a text
        without spaces is bound by its own. It is a bound where no token reaches over a space into the next word: in byte-level
        BPE, WordPiece, Unigram and SentencePiece's BPE.
        """
        known, words = self._by_word, set[str]()
        for text in texts:  # one by one: a list of all words of long texts is large
            words.update(text.split(" ")[1:])
        new = (word for word in words - known.keys() if len(word) <= LONGEST_WORD)
        learnt = list(islice(new, MOST_WORDS - len(known)))
        counts = self.texts([f" {word}" for word in learnt], [""] * len(learnt), [0] * len(learnt))
        known.update(zip(learnt, counts, strict=True))
        split = (text.split(" ") for text in texts)
        return [known.bytes_of(first) + sum(map(known.__getitem__, rest)) for first, *rest in split]

    @property
    def most_image_tokens(self) -> int | None:
        """Return how many tokens an image can be; None where its family sets no bound."""
        return most_image_tokens(self._processor)

    def sample(
        self, pair: PreferencePair, order: Order, template: Template, *, answer: str = "", room: int = 0
    ) -> SampleTokens:
        """Count the tokens of a pair in one order; ``room`` is what a rollout may add."""
        prompt = build_messages(pair, order=order, template=template)
        images = [image for message in prompt for image in message.images]
        [text] = self.texts([self.render(prompt)], [answer], [len(images)])
        return SampleTokens(pair.pair_id, text, self.images(map(_size, images)), len(images), room)


def _size(image: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(image)) as opened:
        return opened.height, opened.width
