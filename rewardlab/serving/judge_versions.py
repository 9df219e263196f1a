"""Which judge answers a request: the one that served when the request came, until the request has its answer.

A server may replace its judge while it runs. A request is judged by one version of it as a whole: all matches of a group, both
orders, every round of votes. A version that has been replaced is dropped when the last of its requests is answered.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rewardlab.judging.judge import Judge, ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE
from rewardlab.serving.context_length import ContextLength
from rewardlab.serving.jobs import JudgeEngine

LOG = logging.getLogger(__name__)
BLOCK = 1 << 20  # bytes at either end of a file of weights by which it is known


@dataclass(eq=False)
class JudgeVersion:
    """A judge that serves, or has served: the ``number``-th since the server began. ``probability_judge`` is the same judge by
    the probability of its verdicts, None where it tells none.

    ``weights`` names the weights of a local checkpoint by what is in their files, as 16 hexadecimal digits; "" of any other
    judge. ``cache_name`` is a hash of all that its answers depend on, beside what is asked; ``context`` what its model reads,
    where that is known. They are of the files as they are when the judge is opened.
    """

    judge: JudgeEngine
    probability_judge: Judge | None = None
    number: int = 1
    num_users: int = field(default=0, init=False)
    weights: str = field(init=False)
    cache_name: str = field(init=False)
    context: ContextLength | None = field(init=False)

    def __post_init__(self) -> None:
        self.weights = weights_name(getattr(self.judge, "spec", ""))
        temperature = {VERDICT_TEMPERATURE: getattr(self.judge, "verdict_temperature", 1.0)}  # of the same judge by probability
        facts = {**getattr(self.judge, "identity", {}), **temperature, "weights": self.weights}
        text = json.dumps(facts, sort_keys=True, default=str)
        self.cache_name = hashlib.sha256(text.encode()).hexdigest()
        self.context = ContextLength.of(self.judge) if isinstance(self.judge, ModelJudge) else None

    @property
    def hash(self) -> str:
        """Return what clients tell one judge from another by."""
        return self.cache_name[:16]


def weights_name(spec: str) -> str:
    """Return a name of the weights of a local checkpoint, the same of equal ones wherever they are; "" of any other judge.

    It is a hash of the names and sizes of their files, and of a mebibyte at either end of each.
    """
    folder = local_checkpoint(spec)
    files = sorted(folder.glob("*.safetensors")) if folder is not None else []
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(_ends_of(path))
    return digest.hexdigest()[:16] if files else ""


def _ends_of(path: Path) -> bytes:
    with path.open("rb") as file:
        first = file.read(BLOCK)
        file.seek(max(0, path.stat().st_size - BLOCK))
        return first + file.read(BLOCK)


def close_judge(judge: Any) -> None:
    """End the engine of a judge that nobody asks any more, on a thread of its own: a child process, replicas, connections."""
    sampler = getattr(judge, "sampler", None)
    close = getattr(sampler, "close", None) or getattr(getattr(sampler, "sampler", None), "close", None)
    if callable(close):
        threading.Thread(target=_close, args=(close,), name="close judge", daemon=True).start()


def _close(close: Callable[[], Any]) -> None:
    try:
        close()
    except Exception:  # the boundary: it is replaced, whatever becomes of it
        LOG.exception("the engine of a replaced judge could not be ended")


VERSION: ContextVar[JudgeVersion | None] = ContextVar("VERSION", default=None)


class JudgeVersions:
    """The judge that serves now, and those before it that still have requests to answer.

    ``loading`` names the judge that is being opened to replace it, ``load_error`` says why the last one did not. ``on_drop`` is
    called with a version that has no request left.
    """

    def __init__(self, first: JudgeVersion, on_drop: Callable[[JudgeVersion], None] = lambda version: None) -> None:
        self.newest, self._on_drop = first, on_drop
        self.num_draining = 0
        self.loading: str | None = None
        self.load_error: str | None = None

    @property
    def current(self) -> JudgeVersion:
        """Return the version that the request is bound to; outside of one the newest."""
        return VERSION.get() or self.newest

    def replace(self, version: JudgeVersion) -> None:
        """Let the requests that come from now on be judged by another judge."""
        old, self.newest = self.newest, version
        version.number = old.number + 1
        if old.num_users:
            self.num_draining += 1
        else:
            self._drop(old)

    @contextmanager
    def held(self, version: JudgeVersion) -> Iterator[None]:
        """Keep a version until what happens within is over."""
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
        """Let what happens within be judged by one version, and keep it until then."""
        with self.held(version):
            token = VERSION.set(version)
            try:
                yield
            finally:
                VERSION.reset(token)

    def _drop(self, version: JudgeVersion) -> None:
        """Let go of a judge. What refers to its version still, such as the timer of an idle connection, does not keep it."""
        LOG.warning("version %d of the judge has answered all of its requests and is dropped", version.number)
        self._on_drop(version)
        close_judge(version.judge)
        version.judge = version.probability_judge = version.context = None  # type: ignore[assignment]
        gc.collect()


class BindVersion:
    """ASGI middleware: a request is judged by the version that serves when it comes. On a connection that is kept it begins in
    the context of the last one, whose version is not its own."""

    def __init__(self, app: ASGIApp, versions: JudgeVersions) -> None:
        self._app, self._versions = app, versions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._versions.bound(self._versions.newest):
            await self._app(scope, receive, send)
