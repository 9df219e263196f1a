"""Bounds of a text's tokens from its words, by tokenizers of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rewardlab.training.run.preflight import LONGEST_WORD, NEAR, TokenCounter, _fit

SENTENCES = [
    "The judge looks at the picture, twice; it says which answer is better.",
    "It's 1,024 pixels wide (and 768 high).\n\nTwo  spaces,\ttabs and   three.",
    "图片里有两只猫。 Größe und Straße, naïve café: 12.5 %",
    "def f(x):\n    return x  # a comment",
] * 20
QWEN = (  # the words of Qwen2's tokenizer
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(split: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    words = [pre_tokenizers.Split(Regex(QWEN), "isolated")] if split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """A BPE with bytes to fall back on and no words but those between spaces, as Llama 2's and Gemma's."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<unk>", *(f"<0x{n:02X}>" for n in range(256))], show_progress=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.pre_tokenizer = None  # merges are those of words; a text is one piece
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        SENTENCES, trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return tokenizer


def _composed() -> Tokenizer:
    tokenizer = _byte_level(True)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


TOKENIZERS = {
    "gpt2": lambda: _byte_level(False),
    "qwen2 as published": _composed,
    "qwen2": lambda: _byte_level(True),
    "sentencepiece": _sentencepiece,
    "unigram": _unigram,
}


def processor_of(tokenizer: Any) -> Any:
    """A processor of a tokenizer alone, whose chat template writes nothing."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return SimpleNamespace(tokenizer=fast, apply_chat_template=lambda *_, **__: "")


class _Recorded(TokenCounter):
    """Notes the texts that the tokenizer is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(processor_of(tokenizer))
        self.given = list[str]()

    def texts(self, rendered: Sequence[str], answers: Sequence[str], num_images: Sequence[int]) -> list[int]:
        self.given += rendered
        return super().texts(rendered, answers, num_images)


def _counter(tokenizer: Tokenizer) -> TokenCounter:
    return TokenCounter(processor_of(tokenizer))


def _count(counter: TokenCounter, text: str) -> int:
    return counter.texts([text], [""], [0])[0]


PIECES = st.sampled_from(
    [" ", " ", " ", "  ", "\n", "\n\n", "\t", ".", ", ", "(", "'s", "12.5", "猫。", "é", "🦆", "<|im_end|>", "\u3000"]
)
TEXTS = st.lists(st.one_of(PIECES, st.sampled_from(" ".join(SENTENCES[:4]).split(" ")), st.text(max_size=5)), max_size=60).map(
    "".join
)


@pytest.fixture(scope="module", params=TOKENIZERS)
def counter(request: pytest.FixtureRequest) -> TokenCounter:
    return _counter(TOKENIZERS[request.param]())


@settings(max_examples=150, deadline=None)
@given(text=TEXTS.filter(lambda text: text.isprintable() or "\n" in text))
def test_a_text_has_no_more_tokens_than_its_words(counter: TokenCounter, text: str) -> None:
    text = text.encode(errors="ignore").decode()  # a prompt has no lone surrogates
    [bound] = counter.texts_at_most([text])
    assert _count(counter, text) <= bound + 1  # the mark that some put before a text


@pytest.mark.parametrize("text", ["\u0344" * 8, "a " + "\U0001d160" * (LONGEST_WORD + 1), "\ufb2c\u0958 x"])
def test_characters_that_become_several(text: str) -> None:
    """Musical notes, Hebrew and Devanagari letters: NFC takes them apart."""
    counter = _counter(_composed())
    [bound] = counter.texts_at_most([text])
    assert len(text.encode()) < _count(counter, text) <= bound


def test_the_bound_of_prose_is_near(counter: TokenCounter) -> None:
    text = " ".join(SENTENCES[:1] * 50)
    [bound] = counter.texts_at_most([text])
    assert _count(counter, text) <= bound + NEAR <= 1.1 * _count(counter, text) + NEAR


def test_words_are_counted_once_and_long_ones_by_their_bytes() -> None:
    counter = _Recorded(_byte_level(True))
    long = "x" * (LONGEST_WORD + 1)
    bounds = counter.texts_at_most(["a judge looks", f"a judge {long}"])
    assert sorted(counter.given) == [" judge", " looks"]
    assert bounds[1] == bounds[0] - _count(counter, " looks") + len(long) + 1
    counter.given.clear()
    counter.texts_at_most(["a looks judge"])
    assert counter.given == []


def test_texts_that_their_words_show_to_fit_are_not_tokenized() -> None:
    counter, prose = _Recorded(_byte_level(True)), " ".join(SENTENCES[:1] * 200)
    tokens = _count(_counter(_byte_level(True)), prose)
    assert _fit([prose] * 50, [tokens + NEAR] * 50, counter) == [True] * 50
    assert sum(map(len, counter.given)) < len(prose) / 50
    no_spaces = "图片里有两只猫。" * 50  # one word: bound by its bytes, so it is counted
    exact = _count(counter, no_spaces)
    assert _fit([no_spaces, no_spaces], [exact, exact - 1], counter) == [True, False]
