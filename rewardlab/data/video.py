"""Frames of a video file, evenly spread. PyAV has its own copy of FFmpeg; nothing need be installed beside it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rewardlab.data.images import MAX_PIXELS
from rewardlab.errors import MediaError

SUFFIXES = {".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v"}


def is_video(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


MAX_FRAMES = 100_000  # nearly an hour
SIDE_PX = 448  # of the longer side, at most: 32 frames of 1080p would be some 100 MB, and more tokens than a judge reads


def frames_of_video(video: Path | bytes, number: int, *, where: str = "") -> tuple[bytes, ...]:
    """At most ``number`` frames as JPEG of at most :data:`SIDE_PX`, the first and the last among them. Raises MediaError.

    ``video`` is a file or what is in one, ``where`` names it. It is decoded twice, once to count: containers lie about how many
    frames they hold.
    """
    import av  # an FFmpeg; only videos need it

    name = where or (str(video) if isinstance(video, Path) else "video")
    try:
        with av.open(_opened(video, name)) as container:
            _check_size(container.streams.video[0], name)
            total = sum(1 for _ in container.decode(video=0))
        wanted = set(np.linspace(0, total - 1, min(number, total)).astype(int).tolist()) if total else set()
        with av.open(_opened(video, name)) as container:
            shown = [_encoded(frame.to_image()) for n, frame in enumerate(container.decode(video=0)) if n in wanted]
    except (av.FFmpegError, IndexError, OSError) as error:
        raise MediaError(f"{name}: not a readable video ({error}); re-encode it, or give a folder of its frames") from error
    if not shown:
        raise MediaError(f"{name}: the video has no frames")
    return tuple(shown)


def _opened(video: Path | bytes, name: str) -> str | io.BytesIO:
    """What FFmpeg may open. Bytes may come from anybody, and a playlist would have it open other files and addresses."""
    if isinstance(video, Path):
        return str(video)
    if not any(video[at : at + len(mark)] == mark for at, mark in _CONTAINERS):
        raise MediaError(f"{name}: not a video that is read from bytes; expected MP4, MOV, WebM, Matroska or AVI")
    return io.BytesIO(video)


_CONTAINERS = ((4, b"ftyp"), (0, b"\x1a\x45\xdf\xa3"), (8, b"AVI "))


def _check_size(stream: Any, name: str) -> None:
    if stream.width * stream.height > MAX_PIXELS:
        raise MediaError(f"{name}: frames of {stream.width}x{stream.height} px are more than {MAX_PIXELS:,}; resize them first")
    if stream.frames > MAX_FRAMES:
        raise MediaError(f"{name}: {stream.frames:,} frames are more than {MAX_FRAMES:,}; cut the video first")


def _encoded(frame: Image.Image) -> bytes:
    small, buffer = frame.convert("RGB"), io.BytesIO()
    small.thumbnail((SIDE_PX, SIDE_PX))
    small.save(buffer, format="JPEG", quality=90)
    return buffer.getvalue()
