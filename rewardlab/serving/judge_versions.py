"""The versions of a server's judge, which may be replaced while the server runs.

A request is bound to the version that serves when it comes: all matches of a group, both orders, every round of votes. A
replaced version is dropped when the last of its requests is answered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rewardlab.judging.guarantee import Facts, judge_facts
from rewardlab.judging.judge import Judge, ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE
from rewardlab.models.model_config import max_positions
from rewardlab.serving.errors import ContextLengthError
from rewardlab.serving.jobs import JudgeEngine
from rewardlab.serving.request_record import tenant_of_request

CHARACTERS_PER_TOKEN = 32  # a text is counted up to this many characters per allowed token: longer ones do not fit anyway
PIECE = 20_000  # characters
COUNTS_KEPT = 1024
_OVERRIDES = re.compile(r"--(max-model-len|hf-overrides|rope-|hf-config-path|config\b)")  # of `vllm serve`


class ContextLength:
    """The ``max_tokens`` that a model reads, counted by the tokenizer of its checkpoint ``folder``."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        from tokenizers import Tokenizer  # comes with transformers, which remote judges do not need

        self.max_tokens = max_tokens
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()  # each response of a group is counted once
        self._lock = threading.Lock()  # prompts are counted in several threads

    @staticmethod
    def of(judge: ModelJudge) -> ContextLength | None:
        """Return the context length of a judge with a local checkpoint, None for others and if engine options may change it."""
        folder = local_checkpoint(judge.spec)
        if _OVERRIDES.search(judge.config.engine_args.replace("_", "-")):
            return None
        if folder is None or not (folder / "tokenizer.json").is_file() or not (folder / "config.json").is_file():
            return None
        max_tokens = max_positions(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        return ContextLength(folder, max_tokens) if max_tokens else None

    def may_exceed(self, texts: Iterable[str]) -> bool:
        """Return whether texts have more bytes than the model reads tokens: only then their tokens are counted."""
        return sum(len(text.encode()) for text in texts) > self.max_tokens

    def check(self, texts: Iterable[str]) -> None:
        """Raise ContextLengthError for texts that do not fit, even without images and template."""
        if (number := sum(map(self._count, texts))) >= self.max_tokens:
            raise ContextLengthError(
                f"the texts of a prompt have {number:,} tokens or more; the judge's model reads at most {self.max_tokens:,}: "
                "shorten them"
            )

    def _count(self, text: str) -> int:
        """Return the tokens of a text. Counts are cached by hash and tenant: a fast answer would reveal what others sent."""
        name = tenant_of_request(), hashlib.sha256(text.encode()).digest()
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
        # encode_batch releases the GIL, encode does not.
        encoded = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return max(0, sum(map(len, encoded)) - len(pieces) + 1)  # a cut may make one token into two


LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class JudgeVersion:
    """The ``number``-th judge since the server began. ``probability_judge`` is the same judge by the probability of its
    verdicts, None if it has none.

    ``facts`` is what the judge is (:func:`rewardlab.judging.guarantee.judge_facts`), ``cache_name`` a hash of them, equal for
    the same checkpoint in two folders; ``weights`` is the identifier of a local checkpoint's content, "" for other judges;
    ``context`` the context length, if known.
    All are of the files as they are when the judge is opened.
    """

    judge: JudgeEngine
    probability_judge: Judge | None = None
    number: int = 1
    num_users: int = field(default=0, init=False)
    facts: Facts = field(init=False)
    weights: str = field(init=False)
    cache_name: str = field(init=False)
    context: ContextLength | None = field(init=False)

    def __post_init__(self) -> None:
        judge, identity = self.judge, getattr(self.judge, "identity", {})
        opened = judge if isinstance(judge, ModelJudge) else None
        self.facts = judge_facts(opened.config, identity) if opened else dict(identity)
        self.weights = str(self.facts.get("weights", ""))
        temperature = getattr(judge, "verdict_temperature", 1.0)  # of the same judge by probability
        text = json.dumps({**self.facts, VERDICT_TEMPERATURE: temperature}, sort_keys=True, default=str)
        self.cache_name = hashlib.sha256(text.encode()).hexdigest()
        self.context = ContextLength.of(opened) if opened else None

    @property
    def hash(self) -> str:
        return self.cache_name[:16]

    @cached_property
    def never_thinks_apart(self) -> bool:
        """Return whether the chat template of a local checkpoint has no switch ``enable_thinking``: to switch it off has no
        effect."""
        folder = local_checkpoint(getattr(self.judge, "spec", ""))
        templates = [] if folder is None else [*folder.glob("*.jinja"), folder / "tokenizer_config.json"]
        return folder is not None and not any(
            "enable_thinking" in path.read_text(encoding="utf-8", errors="replace") for path in templates if path.is_file()
        )


def close_judge(judge: Any) -> None:
    """End the engine of an unused judge on its own thread: a child process, connections."""
    close = getattr(getattr(judge, "of_one_turn", None), "close", None)
    if callable(close):
        threading.Thread(target=_close, args=(close,), name="close judge", daemon=True).start()


def _close(close: Callable[[], Any]) -> None:
    try:
        close()
    except Exception:  # the boundary: it is replaced, whatever becomes of it
        LOG.exception("the engine of a replaced judge could not be ended")


VERSION: ContextVar[JudgeVersion | None] = ContextVar("VERSION", default=None)


class JudgeVersions:
    """The newest judge, and replaced ones with unanswered requests. ``loading`` names the judge that is being opened,
    ``load_error`` says why the last one could not replace the newest. ``on_drop`` is called with a version without requests."""

    def __init__(self, first: JudgeVersion, on_drop: Callable[[JudgeVersion], None] = lambda version: None) -> None:
        self.newest, self._on_drop = first, on_drop
        self.num_draining = 0
        self.loading: str | None = None
        self.load_error: str | None = None

    @property
    def current(self) -> JudgeVersion:
        """Return the version that the request is bound to, outside of a request the newest."""
        return VERSION.get() or self.newest

    def replace(self, version: JudgeVersion) -> None:
        old, self.newest = self.newest, version
        version.number = old.number + 1
        if old.num_users:
            self.num_draining += 1
        else:
            self._drop(old)

    @contextmanager
    def held(self, version: JudgeVersion) -> Iterator[None]:
        version.num_users += 1
        try:
            yield
        finally:
            version.num_users -= 1
            if version is not self.newest and not version.num_users:
                self.num_draining -= 1
                self._drop(version)

    @contextmanager
    def bound(self, version: JudgeVersion) -> Iterator[None]:
        with self.held(version):
            token = VERSION.set(version)
            try:
                yield
            finally:
                VERSION.reset(token)

    def _drop(self, version: JudgeVersion) -> None:
        LOG.warning("version %d of the judge has answered all of its requests and is dropped", version.number)
        self._on_drop(version)
        close_judge(version.judge)
        version.judge = version.probability_judge = version.context = None  # type: ignore[assignment]
