"""Images made for a test."""

from __future__ import annotations

import io

from PIL import Image


def png(size: tuple[int, int] = (28, 28)) -> bytes:
    """Return a red PNG."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()
