"""Whether a prompt fits into what the judge's model reads, found out before the prompt waits for the engine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.models.model_config import max_positions
from rewardlab.serving.errors import ContextLengthError
from rewardlab.serving.request_context import TENANT

CHARACTERS_PER_TOKEN = 32  # so many of a text are counted for each token that fits: the rest would not make it fit
PIECE = 20_000  # characters
COUNTS_KEPT = 1024
_OVERRIDES = re.compile(r"--(max-model-len|hf-overrides|rope-|hf-config-path|config\b)")  # of `vllm serve`


class ContextLength:
    """The ``max_tokens`` that a model reads, and the tokenizer of its checkpoint ``folder``."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        from tokenizers import Tokenizer  # of transformers; a judge elsewhere needs neither

        self.max_tokens = max_tokens
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()  # of a group every response is counted once
        self._lock = threading.Lock()  # prompts are counted in several threads

    @staticmethod
    def of(judge: ModelJudge) -> ContextLength | None:
        """Return the context length of a judge whose checkpoint is a folder here; None for any other, and where the options of
        its engine may change it."""
        folder = local_checkpoint(judge.spec)
        if _OVERRIDES.search(judge.config.engine_args.replace("_", "-")):
            return None
        if folder is None or not (folder / "tokenizer.json").is_file() or not (folder / "config.json").is_file():
            return None
        max_tokens = max_positions(json.loads((folder / "config.json").read_text(encoding="utf-8")))
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

    def _count(self, text: str) -> int:
        """Return the tokens of a text. Counts are kept by a hash in place of the text, and for each tenant: how soon one is
        there would tell what others have sent."""
        name = TENANT.get(), hashlib.sha256(text.encode()).digest()
        with self._lock:
            count = self._counts.pop(name, None)
        if count is None:
            count = self._count_text(text)
        with self._lock:
            self._counts[name] = count
            while len(self._counts) > COUNTS_KEPT:
                self._counts.popitem(last=False)
        return count

    def _count_text(self, text: str) -> int:
        part = text[: CHARACTERS_PER_TOKEN * self.max_tokens]
        pieces = [part[start : start + PIECE] for start in range(0, len(part), PIECE)]
        # A batch is counted without the lock of Python, a single text with it: everybody else would wait.
        encoded = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return max(0, sum(map(len, encoded)) - len(pieces) + 1)  # a cut may make one token into two
