"""Files that are whole or absent, and folders that are marked until they are whole, whenever the process is killed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rewardlab.errors import DataError, OutputError

LOCK = ".lock"
UNFINISHED = ".unfinished"  # marks a folder of shards that is not whole, and ours to remove
SHARD_FILES = "part-*.parquet"
_LOCKS: list[int] = []


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; ``str.splitlines`` would also break at U+2028, which JSON leaves as it is."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_complete_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON lines file that may still grow, without an incomplete last line; [] if there is no file."""
    return list(complete_lines(path))


def complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what :func:`read_complete_lines` returns, one row at a time."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.endswith("\n") and line != "\n":
                yield json.loads(line)


def json_fault(error: ValueError, text: str = "") -> str:
    """Return why JSON cannot be read. For a number that is too long for Python, whose own message is advice for programmers,
    name its line in the file's ``text``."""
    if isinstance(error, json.JSONDecodeError) or "int_max_str_digits" not in str(error):
        return str(error)
    most = sys.get_int_max_str_digits()
    place = re.search(rf"\d{{{most + 1}}}", text)
    where = f"line {text.count(chr(10), 0, place.start()) + 1:,}: " if place else ""
    return f"{where}a number of more than {most:,} digits; shorten it, or put it into quotes as a text"


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, which is no character and which no file of UTF-8 can hold."""
    try:
        if not text.isascii():
            text.encode()  # much faster than a search
    except UnicodeEncodeError:
        return True
    return False


def leads_out(path: str) -> bool:
    """Return whether a relative path leaves, by ``..``, the folder that it starts at; links are not followed."""
    return not os.path.isabs(path) and os.path.normpath(path).split(os.sep)[0] == os.pardir


def place_in_file(path: Path, file: Path, line: int | None) -> str:
    """Return the words behind a row's number in the set ``path``: " (b.jsonl, line 4)"; the file only if it is not the set."""
    parts = [*([file.name] if file != path else []), *([f"line {line:,}"] if line is not None else [])]
    return f" ({', '.join(parts)})" if parts else ""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_hash(path: Path) -> str:
    """Return 16 hex digits of the content of a data file, or of the names and contents of a folder's data files. Raise
    DataError if there is none."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected a data file")
    if not path.is_dir():
        return sha256_of(path)[:16]
    files = sorted(file for file in path.rglob("*") if file.suffix in (".parquet", ".json", ".jsonl", ".arrow"))
    listing = "".join(f"{file.relative_to(path)} {sha256_of(file)}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def lock_folder(folder: Path) -> None:
    """Keep other processes out of ``folder`` until this one ends. Raises OutputError if another process is in it."""
    lock = _open_lock(folder / LOCK)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise OutputError(f"{folder}: another process is writing in it; wait for it or stop it") from error
    _LOCKS.append(lock)  # closing it would let go


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` to a temporary neighbour of ``path`` and move it into place. Raises OutputError."""
    if not path.name:
        raise OutputError(f"{path}: not a file name; expected the file to write")
    partial = path.with_name(f".{path.name}.partial")
    try:
        if path.exists() and not path.is_file():
            raise OutputError(f"{path}: is a folder or a device; expected the name of a file to write")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except (OSError, ValueError) as error:  # a ValueError: a name that no file can have
        with suppress(OSError, ValueError):
            partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: cannot be written ({reason}); choose a writable --out") from error


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder that becomes ``out`` when the block ends; after an error neither is there. A second writer is kept
    out. Raise OutputError if ``out`` cannot be written, or another process writes it."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock_folder(partial)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({error}); choose another --out") from error
    try:
        for old in partial.iterdir():  # of a killed process
            if old.is_dir():
                shutil.rmtree(old)
            elif old.name != LOCK:
                old.unlink()
        yield partial
        (partial / LOCK).unlink()
        partial.rename(out)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise OutputError(f"{out}: cannot be written ({error}); choose another --out") from error
        raise


@contextmanager
def mark_unfinished(folder: Path) -> Iterator[None]:
    """Keep ``folder`` marked as unfinished until the block ends. After a kill or an error the mark stays, and the next call
    removes the shards. A second writer is kept out.

    Raise OutputError if the folder holds shards without a mark (old pairs would stay among new ones), if another process writes
    in it, or if it cannot be written.
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
            f"{folder}: already has shards of a finished command ({shards[0].name}); choose another --out, or remove them"
        )
    return lock_file(mark, folder)


def lock_file(path: Path, output: Path) -> int:
    """Return the file descriptor of ``path``, made if absent, whose lock keeps other processes out until it is closed. Raise
    OutputError that names ``output`` if another process has it, or if it cannot be written."""
    lock = _open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(path)):  # its owner has just finished, and removed or moved it
            raise BlockingIOError
    except OSError as error:
        os.close(lock)
        raise OutputError(f"{output}: another process is writing in it; wait for it or stop it") from error
    return lock


def _open_lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"{path.parent}: cannot be written ({error.strerror}); choose a writable --out") from error
