"""The words of a text, as curation and distillation compare texts by them. Pure functions."""

from __future__ import annotations

import re

OPENING_WORDS = 8
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")  # scripts written without blanks: a character is a word


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def opening_of(judgment: str) -> tuple[str, ...]:
    """Return the first eight words of a judgment, numbers replaced by "#", those of the format not counted."""
    words = words_of(re.sub(r"<[^<>]*>", " ", judgment))
    return tuple("#" if word.isdigit() else word for word in words[:OPENING_WORDS])
