"""Images made for a test."""

from __future__ import annotations

import io
import zlib

from PIL import Image


def png(size: tuple[int, int] = (28, 28)) -> bytes:
    """Return a red PNG."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def torn(data: bytes) -> bytes:
    """Return a PNG whose ends and check sums are right and whose pixels cannot be unpacked: decoding alone shows it."""
    at = data.index(b"IDAT")
    end = at + 4 + int.from_bytes(data[at - 4 : at])
    chunk = data[at : at + 6] + bytes(end - at - 6)
    return data[:at] + chunk + zlib.crc32(chunk).to_bytes(4) + data[end + 4 :]
