"""Pictures of the size and weight of photographs, and files that differ in every row."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

# (width, height) px of a megapixel in the aspects that cameras and screens have
MEGAPIXEL = ((1000, 1000), (1152, 864), (864, 1152), (1224, 816), (816, 1224), (1328, 752))


@dataclass(frozen=True)
class PicturePool:
    """Encoded pictures to draw from. ``png_share`` of the rows (0..1) have a PNG."""

    jpegs: tuple[bytes, ...]
    pngs: tuple[bytes, ...]
    png_share: float

    def pick(self, dice: random.Random, note: str) -> bytes:
        """Return one of the pictures; ``note``, written into the file, makes its bytes differ from every other row's."""
        if dice.random() < self.png_share:
            return with_png_note(dice.choice(self.pngs), note)
        return with_jpeg_note(dice.choice(self.jpegs), note)


def draw_scene(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return a picture of (width, height) px whose spectrum falls as that of photographs does: 1/f clouds in three channels
    that share their light, and a sensor's grain."""
    width, height = size
    dice = np.random.default_rng(seed)
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequencies[0, 0] = 1.0

    def clouds(power: float) -> Any:
        real, imaginary = dice.standard_normal((2, *frequencies.shape))
        field = np.fft.irfft2((real + 1j * imaginary) / frequencies**power, s=(height, width))
        return (field - field.mean()) / field.std()

    light = clouds(1.25)
    channels = [128 + 40 * light + 18 * clouds(1.5) + dice.uniform(-25, 25) for _ in range(3)]
    pixels = np.stack(channels, axis=-1) + 3 * dice.standard_normal((height, width, 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def make_pool(
    num_jpegs: int,
    num_pngs: int,
    *,
    png_share: float,
    quality: int,
    seed: int,
    sizes: Sequence[tuple[int, int]] = MEGAPIXEL,
) -> PicturePool:
    """Draw a pool; a JPEG of a megapixel has about 115 kB at ``quality`` 45 and 200 kB at 75, a PNG 2 MB."""

    def encode(number: int, kind: str) -> bytes:
        buffer = io.BytesIO()
        options = {"quality": quality} if kind == "JPEG" else {}
        draw_scene(seed + number, sizes[number % len(sizes)]).save(buffer, format=kind, **options)
        return buffer.getvalue()

    jpegs = tuple(encode(number, "JPEG") for number in range(num_jpegs))
    return PicturePool(jpegs, tuple(encode(num_jpegs + number, "PNG") for number in range(num_pngs)), png_share)


def with_jpeg_note(data: bytes, note: str) -> bytes:
    """Return a JPEG file with a comment segment (ITU-T T.81, B.2.4.5); its pixels stay."""
    text = note.encode()
    return data[:2] + b"\xff\xfe" + struct.pack(">H", len(text) + 2) + text + data[2:]


def with_png_note(data: bytes, note: str) -> bytes:
    """Return a PNG file with a tEXt chunk after its header; its pixels stay."""
    body = b"tEXt" + b"Comment\x00" + note.encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header = 8 + 4 + 4 + 13 + 4  # signature, then IHDR: length, name, fields, checksum
    return data[:header] + chunk + data[header:]
