"""Media of requests, loaded in threads: within one budget of memory, at the size that the judge's processor uses."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastapi.concurrency import run_in_threadpool

from rewardlab.data.images import decoding_bytes
from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.serving.admission import hold_bytes
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.work_budget import WorkBudget, run_in_thread

FRAMES_HELD = 20  # a decoder keeps up to 16 frames for those that come, and one is being shown
FRAME_BYTES = 2  # a pixel of such a frame, about


class MediaLoader:
    """Loads what ``media`` gives. Of an image with four times ``kept_pixels`` or more fewer are kept, but so many at least."""

    def __init__(self, media: Media, limits: Limits, kept_pixels: int | None = None) -> None:
        self.media, self._kept_pixels = media, kept_pixels
        self._video_bytes = FRAMES_HELD * FRAME_BYTES * limits.frame_pixels
        # An image holds room in the first while it waits for room in the second, never the other way round.
        self._encoded, self._decoded = WorkBudget(limits.decoding_bytes), WorkBudget(limits.decoding_bytes)

    async def images(self, references: Sequence[str]) -> tuple[bytes, ...]:
        """Return the images of references. Raises MediaError, OverloadedError where requests hold too many bytes."""
        return tuple([await self._image(reference, f"image {n}") for n, reference in enumerate(references)])

    async def frames(self, reference: str, number: int, place: int = 0) -> tuple[bytes, ...]:
        """Return frames of the video of a reference. Raises as :meth:`images` does."""
        async with self._decoded.taken(self._video_bytes + MAX_VIDEO_BYTES) as room:
            frames = await run_in_thread(lambda is_stopped: self.media.frames(reference, number, place, is_stopped), room)
        hold_bytes(sum(map(len, frames)))
        return frames

    async def upload(self, data: bytes, *, video: bool) -> str:
        """Store an upload, and return its id. Raises MediaError."""
        num_bytes = self._video_bytes if video else await run_in_threadpool(decoding_bytes, data)
        async with self._decoded.taken(num_bytes) as room:
            return await run_in_thread(lambda is_stopped: self.media.upload(data, video=video, is_stopped=is_stopped), room)

    async def uploaded(self, name: str) -> bytes:
        """Return an upload by its id. Raises MediaError."""
        return await run_in_threadpool(self.media.uploaded, name)

    async def _image(self, reference: str, where: str) -> bytes:
        is_inline = reference.startswith("data:")  # no more bytes than characters
        async with self._encoded.taken(min(len(reference), MAX_IMAGE_BYTES) if is_inline else MAX_IMAGE_BYTES) as read:
            data, num_bytes = await run_in_thread(lambda _: self._read(reference, where), read)
            read.shrink(len(data))  # and kept until it is decoded: else all that wait for that would hold theirs uncounted
            async with self._decoded.taken(num_bytes) as decoded:
                image = await run_in_thread(lambda _: self.media.plain(data, where, self._kept_pixels), read, decoded)
        hold_bytes(len(image))
        return image

    def _read(self, reference: str, where: str) -> tuple[bytes, int]:
        data = self.media.read(reference, where)
        return data, decoding_bytes(data)


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
