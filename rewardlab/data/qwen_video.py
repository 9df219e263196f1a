"""Frames of a video as Qwen's families sample them: number, positions and size are those of ``qwen_vl_utils.fetch_video`` (fps
2, 4 to 768 frames, 128 to 768 tokens each, fewer for a long video).

Number and size come from that package's own functions; PyAV decodes the file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewardlab.errors import ConfigError, MediaError

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class QwenFrames:
    """The frames that a family of Qwen sees. ``patch_px``: side of a patch of its vision tower; a frame's sides are multiples
    of twice that. Numbers of frames are even, as two make one time step. ``total_pixels`` bounds all frames of a video
    together; None: the bound of qwen_vl_utils for 128,000 tokens."""

    patch_px: int
    fps: float = 2.0
    min_frames: int = 4
    total_pixels: int | None = None

    def describe(self, max_frames: int) -> str:
        """Describe how videos become at most ``max_frames`` images, with the package version."""
        from importlib.metadata import version

        return (
            f"qwen-vl-utils {version('qwen-vl-utils')}: {self.fps:g} frames a second, {self.min_frames} to {max_frames}, "
            f"sides in multiples of {2 * self.patch_px} px"
        )

    def places(self, total: int, video_fps: float, max_frames: int, *, where: str) -> list[int]:
        """Return the indices of the sampled frames, at most ``max_frames``. Raises MediaError for a video too short."""
        import torch

        utils = _qwen_vl_utils()
        least = min(self.min_frames, max_frames)
        wanted = {"fps": self.fps, "min_frames": least, "max_frames": max_frames}
        try:
            number = utils.smart_nframes(wanted, total_frames=total, video_fps=video_fps)
        except ValueError as error:
            raise MediaError(
                f"{where}: {total} frames, with a limit of {max_frames}, but this judge's family needs two or "
                f"more; give a single frame as an image, and set `frames` to 2 or more"
            ) from error
        places: list[int] = torch.linspace(0, total - 1, number).round().long().tolist()
        return places

    def size(self, height: int, width: int, number: int, *, where: str) -> tuple[int, int]:
        """Return (height, width) of each of ``number`` frames of a video. Raises MediaError for a shape too thin."""
        utils = _qwen_vl_utils()
        factor = self.patch_px * utils.SPATIAL_MERGE_SIZE
        total = self.total_pixels or utils.MODEL_SEQ_LEN * factor * factor * 0.9
        least = utils.VIDEO_MIN_TOKEN_NUM * factor**2
        most = max(min(utils.VIDEO_MAX_TOKEN_NUM * factor**2, total / number * utils.FRAME_FACTOR), int(least * 1.05))
        try:
            resized: tuple[int, int] = utils.smart_resize(height, width, factor=factor, min_pixels=least, max_pixels=most)
        except ValueError as error:
            raise MediaError(
                f"{where}: frames of {width}x{height} px are too thin for this judge's family ({error})"
            ) from error
        return resized

    def encode(self, frame: Image.Image, number: int, *, where: str) -> bytes:
        """Return one of ``number`` frames at its size, as JPEG of quality 95 without chroma subsampling."""
        from torchvision.transforms import InterpolationMode, functional

        height, width = self.size(frame.height, frame.width, number, where=where)
        pixels = functional.pil_to_tensor(frame.convert("RGB"))
        resized = functional.resize(pixels, [height, width], interpolation=InterpolationMode.BICUBIC, antialias=True)
        buffer = io.BytesIO()
        functional.to_pil_image(resized).save(buffer, format="JPEG", quality=95, subsampling=0)
        return buffer.getvalue()


VideoPolicy = Callable[[], QwenFrames | None]  # called if there is a video; None: evenly spread frames


def _qwen_vl_utils() -> Any:
    """Return the sampling module. Raise ConfigError if it is missing: other frames would give other votes."""
    try:
        from qwen_vl_utils import vision_process
    except ImportError as error:
        raise ConfigError(
            f"this judge's family needs qwen-vl-utils, which samples its videos, and it is missing ({error}): "
            "pip install 'rewardlab[video]'"
        ) from error
    return vision_process
