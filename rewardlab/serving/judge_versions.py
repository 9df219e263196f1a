"""Which judge answers a request: the one that served when the request came, until the request has its answer.

A server may replace its judge while it runs. A request is judged by one version of it as a whole: all matches of a group, both
orders, every round of votes. A version that has been replaced is dropped when the last of its requests is answered.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

from starlette.types import ASGIApp, Receive, Scope, Send

from rewardlab.judging.judge import Judge, ModelJudge
from rewardlab.judging.spec import judge_weights_id
from rewardlab.serving.context_length import ContextLength
from rewardlab.serving.jobs import JudgeEngine

LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class JudgeVersion:
    """A judge that serves, or has served: the ``number``-th since the server began. ``probability_judge`` is the same judge by
    the probability of its verdicts, None where it tells none."""

    number: int
    judge: JudgeEngine
    probability_judge: Judge | None = None
    num_users: int = field(default=0, init=False)

    @cached_property
    def context(self) -> ContextLength | None:
        """Return what its model reads, where that is known."""
        return ContextLength.of(self.judge) if isinstance(self.judge, ModelJudge) else None

    @cached_property
    def weights(self) -> str:
        """Return which weights a local checkpoint had when the judge was opened, as 16 hexadecimal digits; "" of any other
        judge."""
        files = judge_weights_id(getattr(self.judge, "spec", ""))
        return hashlib.sha256(files.encode()).hexdigest()[:16] if files else ""

    @cached_property
    def cache_name(self) -> str:
        """Return a hash of all that the answers of this version depend on, beside what is asked."""
        facts = {"temperature": getattr(self.judge, "verdict_temperature", 1.0), **getattr(self.judge, "identity", {})}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


VERSION: ContextVar[JudgeVersion | None] = ContextVar("VERSION", default=None)


class JudgeVersions:
    """The judge that serves now, and those before it that still have requests to answer.

    ``loading`` names the judge that is being opened to replace it, ``load_error`` says why the last one did not.
    """

    def __init__(self, judge: JudgeEngine, probability_judge: Judge | None = None) -> None:
        self.newest = _version(1, judge, probability_judge)
        self.num_draining = 0
        self.loading: str | None = None
        self.load_error: str | None = None

    @property
    def current(self) -> JudgeVersion:
        """Return the version that the request is bound to; outside of one the newest."""
        return VERSION.get() or self.newest

    def replace(self, judge: JudgeEngine, probability_judge: Judge | None) -> JudgeVersion:
        """Let the requests that come from now on be judged by another judge; return its version."""
        old, self.newest = self.newest, _version(self.newest.number + 1, judge, probability_judge)
        if old.num_users:
            self.num_draining += 1
        else:
            self._drop(old)
        return self.newest

    @contextmanager
    def bound(self) -> Iterator[JudgeVersion]:
        """Bind the current version to what happens within, and keep it until then."""
        version = self.current
        version.num_users += 1
        token = VERSION.set(version)
        try:
            yield version
        finally:
            VERSION.reset(token)
            version.num_users -= 1
            if version is not self.newest and not version.num_users:
                self.num_draining -= 1
                self._drop(version)

    def _drop(self, version: JudgeVersion) -> None:
        """Let go of a judge. Its memory, or its process, ends with the last reference to it."""
        LOG.warning("version %d of the judge has answered all of its requests and is dropped", version.number)
        del version
        gc.collect()


def _version(number: int, judge: JudgeEngine, probability_judge: Judge | None) -> JudgeVersion:
    version = JudgeVersion(number, judge, probability_judge)
    _ = version.weights, version.cache_name  # of the files as they are now
    return version


class BindVersion:
    """ASGI middleware: a request is judged by the version that serves when it comes."""

    def __init__(self, app: ASGIApp, versions: JudgeVersions) -> None:
        self._app, self._versions = app, versions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._versions.bound():
            await self._app(scope, receive, send)
