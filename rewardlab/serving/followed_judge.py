"""The file that names the judge: where it changes, that judge is loaded beside the one that serves, and replaces it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.judging.spec import JudgeSpec
from rewardlab.samplers.base import VLLM
from rewardlab.serving.media_loader import processor_pixels

if TYPE_CHECKING:
    from rewardlab.serving.service import JudgeService

LOG = logging.getLogger(__name__)
MOST_CHARACTERS = 4096


class FollowedJudge:
    """The judge that a file names. ``open_judge`` opens one by its name, in a thread, while the last one goes on serving.

    A file that cannot be read, and a judge that cannot be opened, leave the judge as it is; the server says so in its log and
    under ``/v1/status``, and looks again when the file changes.
    """

    def __init__(self, path: Path, open_judge: Callable[[str], GenerativeJudge], *, recheck_s: float = 1.0) -> None:
        self._path, self._open_judge, self._recheck_s = path, open_judge, recheck_s
        self._stamp = self._read_stamp()

    def read(self) -> str:
        """Return the name in the file. Raise ConfigError where it cannot be read, or holds no name of a judge."""
        try:
            name = self._path.read_bytes()[:MOST_CHARACTERS].decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--judge-file {self._path}: cannot be read ({error}); expected the name of a judge") from error
        JudgeSpec.parse(name)
        return name

    def read_or(self, name: str) -> str:
        """Return the name in the file; ``name`` where there is no such file yet. Raise what :meth:`read` raises."""
        return self.read() if self._path.exists() else name

    async def follow(self, service: JudgeService) -> None:
        """Look at the file again and again, and replace the judge of ``service`` when it has changed."""
        while True:
            await asyncio.sleep(self._recheck_s)
            if (stamp := self._read_stamp()) != self._stamp:
                self._stamp = stamp
                await self._replace(service)

    async def _replace(self, service: JudgeService) -> None:
        queue = service.queue
        versions = queue.versions
        try:
            versions.loading = name = self.read()
            judge = await asyncio.get_running_loop().run_in_executor(None, self._open, name)
            refuse_another_kind(judge, service.judge)
        except (RewardlabError, OSError, RuntimeError) as error:
            versions.load_error = f"{versions.loading or self._path}: {error}"
            LOG.error("%s; version %d of the judge goes on", versions.load_error, versions.newest.number)
        else:
            queue.replace_judge(judge, probability_judge_of(judge))
            versions.load_error = None
            newest = versions.newest
            LOG.warning("version %d of the judge serves: %s, weights %s", newest.number, name, newest.weights or "elsewhere")
        finally:
            versions.loading = None

    def _open(self, name: str) -> GenerativeJudge:
        judge = self._open_judge(name)
        judge.check()
        return judge

    def _read_stamp(self) -> tuple[int, int, int]:
        try:
            stat = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def refuse_another_kind(judge: GenerativeJudge, before: GenerativeJudge) -> None:
    """Raise ConfigError for a judge that this server cannot serve in the place of ``before`` without being started again."""
    old, new = JudgeSpec.parse(before.spec), JudgeSpec.parse(judge.spec)
    if VLLM in (old.engine, new.engine) or old.engine != new.engine:
        raise ConfigError(
            f"a judge of the engine {new.engine} cannot replace one of {old.engine} while the server runs: hf: judges follow "
            "hf: judges, and openai: judges openai: judges; start a server for it"
        )
    if processor_pixels(judge) != processor_pixels(before):
        raise ConfigError(
            f"it reads pictures of up to {processor_pixels(judge)} pixels, and the judge before of {processor_pixels(before)}; "
            "start a server for it"
        )
    if probability_judge_of(judge) is None and probability_judge_of(before) is not None:
        raise ConfigError("it tells no probabilities of its verdicts, and the judge before does; start a server for it")
    if type(judge) is not type(before):
        raise ConfigError("one of the two weighs probabilities, the other counts verdicts: rewards would be on two scales")
