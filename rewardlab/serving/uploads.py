"""Uploads: how clients send them, and their files, a folder for each tenant, which outlive a restart of the server."""

from __future__ import annotations

import contextlib
import hashlib
import mimetypes
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path

from fastapi import Request
from starlette.datastructures import UploadFile

from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES
from rewardlab.errors import MediaError, OutputError
from rewardlab.serving.errors import StorageError
from rewardlab.serving.limits import Limits
from rewardlab.serving.request_record import tenant_of_request

STALE_S = 3600.0  # after which a half-written file is thought to be nobody's
_ID = re.compile(r"[0-9a-f]{32}")


class UploadStore:
    """Files by the id of their content, below ``folder`` (default: a temporary one of this process).

    A tenant has at most ``max_bytes``; its least recently used files are dropped first, and nobody else sees them. Servers may
    share a folder. Raise OutputError for an unwritable folder.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = Limits().upload_bytes) -> None:
        self._max_bytes = max_bytes
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
        """Store an upload of the current tenant, whole or not at all, and return its id. Raise StorageError."""
        name = hashlib.sha256(data).hexdigest()[:32]
        place = self._place()
        with self._lock:
            try:
                place.mkdir(mode=0o700, exist_ok=True)
                if not _touch(place / name):
                    _write(place / name, data)
                self._trim(place)
            except OSError as error:
                raise StorageError(f"the server cannot keep an upload now ({error.strerror}); try again later") from error
        return name

    def path(self, name: str) -> Path | None:
        path = self._place() / name
        return path if _ID.fullmatch(name) and _touch(path) else None

    def get(self, name: str) -> bytes | None:
        try:
            return path.read_bytes() if (path := self.path(name)) else None
        except OSError:  # it was just dropped
            return None

    def _place(self) -> Path:
        return self._folder / (tenant_of_request() or "everybody")

    def _trim(self, place: Path) -> None:
        """Drop the least recently used files of a tenant beyond ``max_bytes``, and what a crash left half written."""
        files = []
        for path in place.iterdir():
            with contextlib.suppress(FileNotFoundError):  # dropped by another server
                status = path.stat()
                if _ID.fullmatch(path.name):
                    files.append((status.st_mtime_ns, status.st_size, path))
                elif time.time() - status.st_mtime > STALE_S:
                    path.unlink()
        num_bytes = sum(size for _, size, _ in files)
        for _, size, path in sorted(files)[:-1]:
            if num_bytes > self._max_bytes:
                path.unlink(missing_ok=True)
                num_bytes -= size


def _touch(path: Path) -> bool:
    """Mark a file as used now, also for other processes; return whether it exists."""
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


MAX_PARTS = 16  # of a form, before it is refused for having several files


async def read_upload(request: Request, name: str = "") -> tuple[bytes, bool]:
    """Return the uploaded bytes and whether they are a video, by the Content-Type or else the file's ``name``.

    Raise MediaError for too many bytes, and for a form without or with several files; HTTPException for a malformed form.
    """
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        return await _read_form(request)
    is_video = _is_video(kind, name)
    body, max_bytes = bytearray(), _max_bytes(is_video)
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise MediaError(f"upload: more than {max_bytes:,} bytes; resize it first")
    return bytes(body), is_video


async def _read_form(request: Request) -> tuple[bytes, bool]:
    async with request.form(max_files=MAX_PARTS, max_fields=MAX_PARTS) as form:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        if len(files) != 1:
            raise MediaError(f"upload: a form with {len(files)} files; expected one, as sent by curl -F file=@star.png")
        (file,) = files
        is_video = _is_video(file.content_type or "", file.filename or "")
        max_bytes = _max_bytes(is_video)
        if (file.size or 0) > max_bytes:
            raise MediaError(f"upload: {file.size:,} bytes, more than {max_bytes:,}; resize it first")
        return await file.read(), is_video


def _is_video(kind: str, name: str) -> bool:
    if not kind.startswith(("image/", "video/")):
        kind = mimetypes.guess_type(name)[0] or ""
    return kind.startswith("video/")


def _max_bytes(is_video: bool) -> int:
    return MAX_VIDEO_BYTES if is_video else MAX_IMAGE_BYTES
