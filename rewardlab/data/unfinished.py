"""A folder of shards in the making: marked until it is whole, so that what a killed command leaves is never taken for a set."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rewardlab.errors import OutputError

UNFINISHED = ".unfinished"  # in a folder of shards: what is here is not whole, and ours to remove
SHARD_FILES = "part-*.parquet"


@contextmanager
def mark_unfinished(folder: Path) -> Iterator[None]:
    """Keep ``folder`` marked as unfinished until the block ends; where it is left in another way, also by a kill or an error,
    the mark stays, and the next call removes the shards. Others who would write shards are kept out.

    Raise OutputError where the folder holds shards without a mark (with fewer new ones, old pairs would stay among them), where
    another process writes in it, and where it cannot be written.
    """
    mark = folder / UNFINISHED
    lock = _lock_mark(mark)
    try:
        for old in [*folder.glob(SHARD_FILES), *folder.glob("part-*.partial")]:
            old.unlink()
        yield
        mark.unlink()
    finally:
        os.close(lock)


def _lock_mark(mark: Path) -> int:
    """Return the file descriptor of the mark, whose lock ends with it. Raise OutputError as :func:`mark_unfinished` does."""
    folder = mark.parent
    if not mark.exists() and (shards := sorted(folder.glob(SHARD_FILES))):
        raise OutputError(
            f"{folder}: holds shards already ({shards[0].name}) that no command left unfinished; choose another --out, or "
            "remove them"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(mark, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror}); choose a writable --out") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:  # else who had it has just finished, and removed it
            return lock
        raise BlockingIOError
    except OSError as error:
        os.close(lock)
        raise OutputError(f"{folder}: another process is writing in it; wait for it or stop it") from error
