"""An append-only log of JSON lines that records the progress of a long job, safe against ``kill -9``.

Each row is one unbuffered ``write``, so a killed process leaves complete lines and at most one partial line, which is
truncated when the log is opened again. The first row identifies the run; an exclusive lock keeps out a second writer.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rewardlab.errors import ConfigError, DataError, OutputError


@contextmanager
def undamaged(path: Path, number: int) -> Iterator[None]:
    """Raise DataError if reading line ``number`` of a log finds a missing key or a value of another kind."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}, line {number}: corrupt ({what}); restore the file, or delete the line and run the same "
            f"command again, which repeats the request"
        ) from error


class AppendLog:
    """The log at ``path`` of the run that ``identity`` describes, opened or continued; ``rows`` are the rows already in it.

    ``is_worth`` tells whether a row holds anything that would be lost: the log of another run is overwritten if no row does.
    Raises ConfigError if the file belongs to another run, DataError if a line is damaged, OutputError if the path cannot be
    written or another process has locked it.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, object], is_worth: Callable[[Mapping[str, Any]], bool] = lambda row: True
    ) -> None:
        self.path, self._is_worth = path, is_worth
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}); choose a writable --out") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rows = self._read(identity)
        except BlockingIOError as error:
            self.close()
            raise OutputError(f"{path}: another process is writing it; wait for it or stop it") from error
        except (ConfigError, DataError):
            self.close()
            raise

    def _read(self, identity: Mapping[str, object]) -> list[dict[str, Any]]:
        rows = list(self._stored())
        stored = rows[0].get("identity") if rows else None
        empty = not rows or (rows[0].keys() == {"identity"} and not any(map(self._is_worth, rows[1:])))
        if empty and stored != identity:  # nothing in it could be lost
            os.ftruncate(self._file, 0)
            self.append({"identity": identity})
            return []
        if stored != identity:
            names = sorted(k for k in {**identity, **(stored or {})} if identity.get(k) != (stored or {}).get(k))
            raise ConfigError(
                f"{self.path}: belongs to a run that differs in {', '.join(names)}; use another --out, or the same settings"
            )
        return rows[1:]

    def _stored(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the file, including the first; truncate an incomplete last line."""
        place = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, place)
                    return
                place += len(line)
                yield self._parse(number, line)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{self.path}, line {number}: damaged ({error}); restore it or start over") from error
        if not isinstance(row, dict):
            raise DataError(f"{self.path}, line {number}: damaged (not an object); restore it or start over")
        return row

    def append(self, row: Mapping[str, object]) -> None:
        """Append a row; it is in the file, for any reader, when this returns."""
        # A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape.
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OutputError(f"{self.path}: {error.strerror}; nothing is lost: make room and run again") from error

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
