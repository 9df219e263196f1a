"""The file that names the judge: when it changes, the new judge is loaded while the old one serves, and replaces it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.judging.spec import JudgeSpec, judge_config
from rewardlab.samplers.base import VLLM
from rewardlab.serving.auth import file_stamp
from rewardlab.serving.jobs import EngineThread, JudgeEngine
from rewardlab.serving.judge_versions import JudgeVersion, close_judge
from rewardlab.serving.media import processor_pixels
from rewardlab.serving.queue import JudgeQueue

LOG = logging.getLogger(__name__)
MOST_BYTES = 4096


class JudgeFile:
    """The file of ``path``. ``open_judge`` opens a judge by its name, on a thread, while the old one serves.

    If the file cannot be read, or its judge cannot be opened or cannot replace the old one, the old judge goes on serving:
    ``/v1/status`` says so, the log has the reason, and the server tries again when the file changes.
    """

    def __init__(self, path: Path, open_judge: Callable[[str], GenerativeJudge], *, recheck_s: float = 1.0) -> None:
        self._path, self._open_judge, self._recheck_s = path, open_judge, recheck_s
        self._stamp = file_stamp(path)

    def read(self) -> str:
        """Return the name in the file. Raise ConfigError if it cannot be read, or contains no name of a judge."""
        try:
            if not self._path.is_file():
                raise FileNotFoundError("no such file")
            with self._path.open("rb") as file:
                name = file.read(MOST_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--judge-file {self._path}: cannot be read ({error}); expected the name of a judge") from error
        _engine(name)
        return name

    def read_or(self, name: str) -> str:
        """Return the name in the file, ``name`` if there is no such file yet. Raise what :meth:`read` raises."""
        return self.read() if self._path.exists() else name

    async def follow(self, queue: JudgeQueue) -> None:
        """Check the file until cancelled, and replace the judge of ``queue`` when the file has changed."""
        thread = EngineThread()  # a daemon: a load that hangs does not keep the server from ending
        try:
            while True:
                await asyncio.sleep(self._recheck_s)
                if (stamp := await thread.run(partial(file_stamp, self._path))) != self._stamp:
                    self._stamp = stamp
                    await self._replace(queue, thread)
        finally:
            thread.close()

    async def _replace(self, queue: JudgeQueue, thread: EngineThread) -> None:
        versions, what = queue.versions, str(self._path)
        try:
            what = versions.loading = await thread.run(self.read)
            version = await thread.run(partial(self._open, what, versions.newest.judge))
            queue.replace_version(version)
        except Exception as error:  # the boundary: no file or checkpoint stops the server
            LOG.error("%s cannot serve; version %d stays: %s", what, versions.newest.number, error, exc_info=error)
            versions.load_error = f"{self._path}: {type(error).__name__}; the log of the server has the reason"
        else:
            versions.load_error = None
            LOG.warning("version %d of the judge serves: %s, weights %s", version.number, what, version.weights or "elsewhere")
        finally:
            versions.loading = None

    def _open(self, name: str, before: JudgeEngine) -> JudgeVersion:
        assert isinstance(before, GenerativeJudge)
        refuse_another_engine(name, before)
        judge = self._open_judge(name)
        try:
            judge.check()
            refuse_another_kind(judge, before)
            return JudgeVersion(judge, probability_judge_of(judge))
        except BaseException:
            close_judge(judge)
            raise


def _engine(name: str) -> str:
    return JudgeSpec.parse(judge_config(name).judge).engine


def refuse_another_engine(name: str, before: GenerativeJudge) -> None:
    """Raise ConfigError, before anything is opened, for a judge of another engine than ``before``, and for vLLM, which occupies
    the GPU."""
    old, new = JudgeSpec.parse(before.spec).engine, _engine(name)
    if VLLM in (old, new) or old != new:
        raise ConfigError(
            f"a judge of the engine {new} cannot replace one of {old} while the server runs: hf: judges follow hf: judges, and "
            "openai: judges openai: judges; start a server for it"
        )


def refuse_another_kind(judge: GenerativeJudge, before: GenerativeJudge) -> None:
    """Raise ConfigError for a judge that cannot replace ``before`` without a restart of the server."""
    if processor_pixels(judge) != processor_pixels(before):
        raise ConfigError(
            f"it reads images of up to {processor_pixels(judge)} pixels, the current judge up to {processor_pixels(before)}; "
            "start another server for it"
        )
    if probability_judge_of(judge) is None and probability_judge_of(before) is not None:
        raise ConfigError("it gives no verdict probabilities, but the current judge does; start another server for it")
    if type(judge) is not type(before):
        raise ConfigError("one of the two uses probabilities, the other counts verdicts: rewards would be on different scales")
