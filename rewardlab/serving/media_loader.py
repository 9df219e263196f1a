"""Media of requests, loaded in threads: within budgets of memory, at the size that the judge's processor uses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool

from rewardlab.data.images import decoding_bytes
from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES
from rewardlab.data.video import video_pixels
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.serving.admission import hold_bytes, hold_image
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.work_budget import IsStopped, WorkBudget, run_in_thread

T = TypeVar("T")
FRAMES_HELD = 20  # a decoder keeps up to 16 frames for those that come, and one is being shown
FRAME_BYTES = 2  # a pixel of such a frame, about
VIDEOS_AT_A_TIME = max(1, min(16, os.cpu_count() or 1))  # that are decoded at a time: more would take the threads of all else


class MediaLoader:
    """Loads what ``media`` gives. Of an image with four times ``kept_pixels`` or more fewer are kept, but so many at least."""

    def __init__(self, media: Media, limits: Limits, kept_pixels: int | None = None) -> None:
        self.media, self._limits, self._kept_pixels = media, limits, kept_pixels
        self._images, self._videos = _Budgets(limits.decoding_bytes), _Budgets(limits.decoding_bytes)

    async def images(self, references: Sequence[str]) -> tuple[bytes, ...]:
        """Return the images of references. Raises MediaError, OverloadedError where requests hold too many bytes."""
        return tuple([await self._image(reference, f"image {n}") for n, reference in enumerate(references)])

    async def frames(self, reference: str, number: int, place: int = 0) -> tuple[bytes, ...]:
        """Return frames of the video of a reference. Raises as :meth:`images` does."""
        where = f"video {place}"

        def read() -> tuple[bytes, int]:
            data = self.media.read(reference, where, video=True)
            return data, self._video_bytes(data, where)

        def decode(data: bytes, is_stopped: IsStopped) -> tuple[bytes, ...]:
            return self.media.frames(data, number, where, is_stopped)

        frames = await self._videos.load(_most_bytes(reference, MAX_VIDEO_BYTES), read, decode)
        hold_bytes(sum(map(len, frames)))
        return frames

    async def upload(self, data: bytes, *, video: bool) -> str:
        """Store an upload, and return its id. Raises MediaError."""
        budgets = self._videos if video else self._images
        num_bytes = await run_in_threadpool(self._video_bytes if video else _image_bytes, data, "upload")
        async with budgets.decoded.taken(num_bytes) as room:
            return await run_in_thread(lambda is_stopped: self.media.upload(data, video=video, is_stopped=is_stopped), room)

    async def uploaded(self, name: str) -> Path:
        """Return the file of an upload by its id. Raises MediaError."""
        return await run_in_threadpool(self.media.uploaded, name)

    async def _image(self, reference: str, where: str) -> bytes:
        def read() -> tuple[bytes, int]:
            data = self.media.read(reference, where)
            return data, _image_bytes(data, where)

        def decode(data: bytes, is_stopped: IsStopped) -> bytes:
            return self.media.plain(data, where, self._kept_pixels)

        image = await self._images.load(_most_bytes(reference, MAX_IMAGE_BYTES), read, decode)
        hold_image(image)
        return image

    def _video_bytes(self, data: bytes, where: str) -> int:
        """Return about how many bytes decoding a video takes, at least so many that no more than
        :data:`VIDEOS_AT_A_TIME` fit."""
        num_bytes = FRAMES_HELD * FRAME_BYTES * video_pixels(data, where, most_pixels=self._limits.frame_pixels)
        return max(num_bytes, self._limits.decoding_bytes // VIDEOS_AT_A_TIME)


class _Budgets:
    """``max_bytes`` for what is decoded, and as many for what was read and waits for that. Who waits for the first has some of
    the second, never the other way round: so nobody waits for ever."""

    def __init__(self, max_bytes: int) -> None:
        self.encoded, self.decoded = WorkBudget(max_bytes), WorkBudget(max_bytes)

    async def load(self, most_bytes: int, read: Callable[[], tuple[bytes, int]], decode: Callable[[bytes, IsStopped], T]) -> T:
        """Return what is decoded of what is read: ``most_bytes`` at most, and how many bytes decoding takes."""
        async with self.encoded.taken(most_bytes) as encoded:
            data, num_bytes = await run_in_thread(lambda _: read(), encoded)
            encoded.shrink(len(data))
            async with self.decoded.taken(num_bytes) as decoded:
                return await run_in_thread(partial(decode, data), encoded, decoded)


def _most_bytes(reference: str, most: int) -> int:
    return min(len(reference), most) if reference.startswith("data:") else most  # a data URL has more characters than bytes


def _image_bytes(data: bytes, where: str) -> int:
    return decoding_bytes(data)


def processor_pixels(judge: ModelJudge) -> int | None:
    """Return the most pixels that the image processor of a judge's checkpoint makes of an image; None where that is not known
    here."""
    folder = local_checkpoint(judge.spec)
    for name in ("processor_config.json", "preprocessor_config.json"):
        if folder is not None and (folder / name).is_file():
            config = json.loads((folder / name).read_text(encoding="utf-8"))
            config = config.get("image_processor") or config
            most = (config.get("size") or {}).get("longest_edge") or config.get("max_pixels")
            # An edge in pixels, not an area, as other families have it, would make pictures far too small.
            return int(most) if most and most > 10_000 else None
    return None
