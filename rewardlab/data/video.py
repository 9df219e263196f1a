"""Frames of a video file, evenly spread or as a family of models samples them. PyAV decodes, with its own copy of FFmpeg."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rewardlab.data.images import MAX_PIXELS, kind_of
from rewardlab.data.qwen_video import QwenFrames
from rewardlab.errors import ConfigError, InputError, MediaError

if TYPE_CHECKING:
    from PIL import Image


SUFFIXES = {".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v"}


FRAME_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}


def is_video(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def frame_files(folder: Path) -> list[Path]:
    """Return the image files of a folder in the order of the numbers in their names (frame2 before frame10)."""
    files = [path for path in folder.iterdir() if path.suffix.lower() in FRAME_SUFFIXES]
    return sorted(files, key=lambda path: (int("0" + "".join(filter(str.isdecimal, path.stem))), path.name))


def evenly(files: Sequence[Path], number: int) -> list[Path]:
    """Return at most ``number`` of the files, evenly spread, the first and the last among them."""
    if len(files) <= number:
        return list(files)
    return [files[n] for n in np.linspace(0, len(files) - 1, number).astype(int).tolist()]


MAX_FRAMES = 100_000  # nearly an hour
DECODER_PX = 1_000_000  # a decoder counts the edges around a frame too
ROUNDED_PX = 64  # to a multiple of which decoders round the sides of a frame, at most
SIDE_PX = 448  # of the longer side, at most: 32 frames of 1080p would be some 100 MB, and more tokens than a judge reads


@dataclass(frozen=True)
class DecodingBounds:
    """Limits of decoding a video: CPU ``seconds``, ``pixels`` of a frame; ``is_stopped`` tells that nobody waits for it."""

    seconds: float = math.inf
    pixels: int = MAX_PIXELS
    is_stopped: Callable[[], bool] = lambda: False


def frames_of_video(
    video: Path | bytes, number: int, *, where: str = "", policy: QwenFrames | None = None, bounds: DecodingBounds | None = None
) -> tuple[bytes, ...]:
    """Return at most ``number`` frames as JPEG: by ``policy``, or evenly spread, first and last included, of at most
    :data:`SIDE_PX`. Raises MediaError, also at ``bounds``, and ConfigError if a package is missing.

    ``video`` is a file or its content, ``where`` names it. It is decoded twice, once to count: containers lie about their
    number of frames.
    """
    try:
        import av  # an FFmpeg; only videos need it
    except ImportError as error:
        raise _without_av(error) from error

    name = where or (str(video) if isinstance(video, Path) else "video")
    form = container_of(video, name) if isinstance(video, bytes) else None
    work = _Work(bounds or DecodingBounds(), name)
    try:
        with av.open(_opened(video), format=form, metadata_errors="replace") as container:
            total = sum(1 for _ in work.frames(container))
            rate = container.streams.video[0].average_rate
        if not total:
            raise MediaError(f"{name}: the video has no frames")
        if policy is None:
            places = np.linspace(0, total - 1, min(number, total)).astype(int).tolist()
        else:
            places = policy.places(total, _frame_rate(rate, name), number, where=name)
        with av.open(_opened(video), format=form, metadata_errors="replace") as container:
            frames = [
                _encoded(frame.to_image()) if policy is None else policy.encode(frame.to_image(), len(places), where=name)
                for n, frame in enumerate(work.frames(container))
                if n in places
            ]
    except InputError:
        raise
    except Exception as error:  # the boundary: a damaged file fails in every way there is
        raise _unreadable(name, error) from error
    return tuple(frames)


def _without_av(error: Exception) -> ConfigError:
    return ConfigError(f"videos are decoded by PyAV, which is missing ({error}): pip install 'rewardlab[video]'")


def _unreadable(name: str, error: Exception) -> MediaError:
    return MediaError(f"{name}: not a readable video ({error}); re-encode it, or give a folder of its frames")


def video_pixels(video: bytes, where: str, *, most_pixels: int) -> int:
    """Return the pixels of a frame by the header, ``most_pixels`` if it does not say. Raises MediaError if there are more, and
    for a file that is no video."""
    try:
        import av
    except ImportError as error:
        raise _without_av(error) from error
    try:
        with av.open(io.BytesIO(video), format=container_of(video, where), metadata_errors="replace") as container:
            return _Work(DecodingBounds(pixels=most_pixels), where).declared_pixels(container.streams.video[0])
    except InputError:
        raise
    except Exception as error:  # the boundary: see above
        raise _unreadable(where, error) from error


def describe_frames(number: int, policy: QwenFrames | None) -> str:
    """Describe how :func:`frames_of_video` samples at most ``number`` frames."""
    return f"{number} frames at most, evenly spread, within {SIDE_PX} px (PyAV)" if policy is None else policy.describe(number)


def _frame_rate(rate: Any, name: str) -> float:
    """Return frames per second. Raises MediaError if the file does not say."""
    if not rate:
        raise MediaError(f"{name}: its frame rate is missing; re-encode it, or give a folder of its frames")
    return float(rate)


def _opened(video: Path | bytes) -> str | io.BytesIO:
    return io.BytesIO(video) if isinstance(video, bytes) else str(video)


def container_of(video: bytes, name: str) -> str:
    """Return FFmpeg's name of a container. FFmpeg must not guess it: it would take hostile bytes for a playlist or a session
    description, and open the files and sockets that these name."""
    if (container := {"mp4": "mov", "mkv": "matroska", "avi": "avi"}.get(kind_of(video))) is not None:
        return container
    raise MediaError(f"{name}: not a supported video format; expected MP4, MOV, WebM, Matroska or AVI")


class _Work:
    """Decoding of one video; the size and number of frames in its header are not trusted."""

    def __init__(self, bounds: DecodingBounds, name: str) -> None:
        self._bounds, self._name = bounds, name
        self._end = time.thread_time() + bounds.seconds

    def frames(self, container: Any) -> Iterator[Any]:
        """Yield the frames. Raises MediaError at a bound."""
        stream = container.streams.video[0]
        declared, most_pixels = f"{stream.width}x{stream.height}", self._bounds.pixels
        if math.isfinite(self._bounds.seconds):
            stream.codec_context.thread_count = 1  # else others decode, and their seconds are not counted
            most_pixels = self.declared_pixels(stream)  # so much memory was kept for it
            # A decoder holds several frames before the first comes out: it has to refuse what is much larger by itself.
            stream.codec_context.options = {"max_pixels": str(most_pixels + DECODER_PX)}
        for n, frame in enumerate(container.decode(video=0)):
            self._check_size(frame.width, frame.height)
            if frame.width * frame.height > most_pixels:
                size = f"{frame.width}x{frame.height}"
                raise MediaError(f"{self._name}: has frames of {size} px, but its header declares {declared}; re-encode it")
            self._check_work()
            if n >= MAX_FRAMES:
                raise MediaError(f"{self._name}: more than {MAX_FRAMES:,} frames; cut the video first")
            yield frame

    def declared_pixels(self, stream: Any) -> int:
        """Return the pixels of a frame by its stream's header, its sides rounded up as decoders do."""
        self._check_size(stream.width, stream.height)
        return math.prod(-(-side // ROUNDED_PX) * ROUNDED_PX for side in (stream.width, stream.height)) or self._bounds.pixels

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._bounds.pixels:
            raise MediaError(
                f"{self._name}: frames of {width}x{height} px are more than {self._bounds.pixels:,}; resize them first"
            )

    def _check_work(self) -> None:
        if time.thread_time() > self._end:
            raise MediaError(
                f"{self._name}: takes more than {self._bounds.seconds:g} s to decode; shorten it, or send its frames as images"
            )
        if self._bounds.is_stopped():
            raise MediaError(f"{self._name}: cancelled, because no client is waiting for it")


def _encoded(frame: Image.Image) -> bytes:
    small, buffer = frame.convert("RGB"), io.BytesIO()
    small.thumbnail((SIDE_PX, SIDE_PX))
    small.save(buffer, format="JPEG", quality=90)
    return buffer.getvalue()
