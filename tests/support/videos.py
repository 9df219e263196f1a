"""Films to send."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def film(path: Path, num_frames: int, rate: Fraction | int = 10, size: tuple[int, int] = (64, 48)) -> Path:
    """A film that gets brighter by the same step from frame to frame, from black on; ``size`` is (width, height) in px."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for n in range(num_frames):
            grey = np.full((size[1], size[0], 3), round(255 * n / max(1, num_frames - 1)), dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path
