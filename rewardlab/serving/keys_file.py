"""The file of API keys, read again when it has changed: a key is added, or taken back, while the server runs."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

from rewardlab.errors import ConfigError
from rewardlab.serving.auth import Keys, read_keys

LOG = logging.getLogger(__name__)


class KeysFile:
    """The keys of a file as it is now. One that can no longer be read leaves the keys as they were, and says so in the log.

    Raise what :func:`rewardlab.serving.auth.read_keys` raises if it cannot be read at the beginning.
    """

    def __init__(self, path: Path, *, per_minute: float = math.inf, recheck_s: float = 1.0) -> None:
        self._path, self._per_minute, self._recheck_s = path, per_minute, recheck_s
        self._stamp, self._checked = self._read_stamp(), time.monotonic()
        self.keys = Keys(read_keys(path, per_minute=per_minute))

    def update(self) -> None:
        """Read the file again if it has changed; at most every ``recheck_s`` it is looked at."""
        now = time.monotonic()
        if now - self._checked < self._recheck_s:
            return
        self._checked = now
        if (stamp := self._read_stamp()) == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = read_keys(self._path, per_minute=self._per_minute)
        except ConfigError as error:
            LOG.error("%s; the keys read before go on", error)
            return
        self.keys.replace(keys)
        LOG.warning("--keys %s: read again, %d keys", self._path, len(keys))

    def _read_stamp(self) -> tuple[int, int, int]:
        """Return what changes with the file; a mounted secret changes where its link leads."""
        try:
            stat = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
