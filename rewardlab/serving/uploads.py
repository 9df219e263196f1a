"""Uploads on disk: a folder for each tenant, so that a run whose labels name uploads outlives a restart of its server."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from pathlib import Path

from rewardlab.errors import OutputError
from rewardlab.serving.errors import StorageError
from rewardlab.serving.request_context import TENANT

MAX_UPLOAD_BYTES = 1_000_000_000
STALE_S = 3600.0  # after which a half-written file is thought to be nobody's
_ID = re.compile(r"[0-9a-f]{32}")


class UploadStore:
    """Files by the id of their content, below ``folder`` (default: a temporary one, which goes with the process).

    A tenant has at most ``max_bytes``; its least recently used files are dropped first, and nobody else sees them. Several
    servers may share a folder: each counts what it has stored itself, and what was there when it first looked. Raises
    OutputError for a folder that cannot be written.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = MAX_UPLOAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[str, OrderedDict[str, int]] = {}  # tenant -> id -> bytes, the least recently used first
        self._lock = threading.Lock()  # requests are served by several threads
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="rewardlab-uploads-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: no folder for uploads ({error.strerror}); choose another --uploads") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"{folder}: uploads cannot be written there; choose another --uploads")

    def add(self, data: bytes) -> str:
        """Store what the tenant of this request sends, whole or not at all, and return its id. Raises StorageError."""
        name = hashlib.sha256(data).hexdigest()[:32]
        place = self._place()
        with self._lock:
            sizes = self._known(place)
            try:
                if not _touch(place / name):
                    _write(place / name, data)
            except OSError as error:
                raise StorageError(f"the server cannot keep an upload now ({error.strerror}); try again later") from error
            sizes[name] = len(data)
            sizes.move_to_end(name)
            while sum(sizes.values()) > self._max_bytes and len(sizes) > 1:
                (place / sizes.popitem(last=False)[0]).unlink(missing_ok=True)
        return name

    def path(self, name: str) -> Path | None:
        """Return the file that the tenant of this request has stored under an id; None where there is nothing."""
        path = self._place() / name
        if not _ID.fullmatch(name) or not _touch(path):
            return None
        with self._lock, contextlib.suppress(KeyError):
            self._known(path.parent).move_to_end(name)
        return path

    def get(self, name: str) -> bytes | None:
        """Return what the tenant of this request has stored under an id; None where there is nothing."""
        try:
            return path.read_bytes() if (path := self.path(name)) else None
        except OSError:  # it was just dropped
            return None

    def _place(self) -> Path:
        return self._folder / (TENANT.get() or "everybody")

    def _known(self, place: Path) -> OrderedDict[str, int]:
        """Return the sizes of a tenant's files, read from its folder the first time."""
        if place.name not in self._sizes:
            place.mkdir(mode=0o700, exist_ok=True)
            files = []
            for file in os.scandir(place):
                status = file.stat()
                if _ID.fullmatch(file.name):
                    files.append((status.st_mtime_ns, file.name, status.st_size))
                elif time.time() - status.st_mtime > STALE_S:
                    os.unlink(file.path)
            self._sizes[place.name] = OrderedDict((name, size) for _, name, size in sorted(files))
        return self._sizes[place.name]


def _touch(path: Path) -> bool:
    """Mark a file as used now, which other processes and later ones see; return whether it is there."""
    try:
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
    except OSError:
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    descriptor, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
