"""Whether a prompt fits into what the judge's model reads, found out before the prompt waits for the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.serving.errors import ContextLengthError

CHARACTERS_PER_TOKEN = 32  # so many of a text are counted for each token that fits: the rest would not make it fit
PIECE = 20_000  # characters


class ContextLength:
    """The ``max_tokens`` that a model reads, and the tokenizer of its checkpoint ``folder``."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        from tokenizers import Tokenizer  # of transformers; a judge elsewhere needs neither

        self.max_tokens = max_tokens
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._count = lru_cache(maxsize=1024)(self._count_text)  # of a group every response is counted once

    @staticmethod
    def of(judge: ModelJudge) -> ContextLength | None:
        """Return the context length of a judge whose checkpoint is a folder here; None for any other."""
        folder = local_checkpoint(judge.spec)
        if folder is None or not (folder / "tokenizer.json").is_file() or not (folder / "config.json").is_file():
            return None
        max_tokens = _max_tokens(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        return ContextLength(folder, max_tokens) if max_tokens else None

    def may_exceed(self, texts: Iterable[str]) -> bool:
        """Return whether texts have more bytes than tokens fit: only then they need to be counted."""
        return sum(len(text.encode()) for text in texts) > self.max_tokens

    def check(self, texts: Iterable[str]) -> None:
        """Raise ContextLengthError for texts that do not fit, whatever stands between them and however small the images are."""
        if (number := sum(map(self._count, texts))) >= self.max_tokens:
            raise ContextLengthError(
                f"the texts of a prompt have {number:,} tokens or more; the judge's model reads at most {self.max_tokens:,}: "
                "shorten them"
            )

    def _count_text(self, text: str) -> int:
        part = text[: CHARACTERS_PER_TOKEN * self.max_tokens]
        pieces = [part[start : start + PIECE] for start in range(0, len(part), PIECE)]
        # A batch is counted without the lock of Python, a single text with it: everybody else would wait.
        encoded = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return max(0, sum(map(len, encoded)) - len(pieces) + 1)  # a cut may make one token into two


def _max_tokens(config: dict[str, Any]) -> int:
    """Return the most positions of a model's text part; 0 where its config says nothing."""
    text = config.get("text_config") or config
    return int(text.get("max_position_embeddings") or 0)
