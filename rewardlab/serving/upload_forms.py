"""Uploads as clients send them: the file as the body, or a form with one file."""

from __future__ import annotations

import mimetypes

from fastapi import Request
from starlette.datastructures import UploadFile

from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES
from rewardlab.errors import MediaError

MAX_PARTS = 16  # of a form, before it is refused for having several files


async def read_upload(request: Request, name: str = "") -> tuple[bytes, bool]:
    """Return the uploaded bytes and whether they are a video, by the Content-Type or else the file's ``name``.

    Raises MediaError for too many bytes, and for a form without a file or with several; HTTPException for a form that cannot
    be read.
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
            raise MediaError(f"upload: a form with {len(files)} files; expected one, such as curl -F file=@star.png sends")
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
