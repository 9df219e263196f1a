"""Images that say that they lie on their side: what is kept shows them upright to any decoder."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from rewardlab.data.images import decode_image, plain_image

RED, BLUE = (220, 20, 20), (20, 20, 220)
ORIENTATION = 0x0112
# Where the red left half of the stored image is seen, by its orientation.
RED_SIDE = {1: "left", 2: "right", 3: "right", 4: "left", 5: "top", 6: "top", 7: "bottom", 8: "bottom"}


def stored(orientation: int) -> bytes:
    """A JPEG, red at the left and blue at the right of what is stored."""
    image, buffer = Image.new("RGB", (120, 60), BLUE), io.BytesIO()
    image.paste(RED, (0, 0, 60, 60))
    exif = image.getexif()
    exif[ORIENTATION] = orientation
    image.save(buffer, format="JPEG", quality=95, subsampling=0, exif=exif)
    return buffer.getvalue()


def is_red(image: Image.Image, side: str) -> bool:
    width, height = image.size
    places = {"left": (5, height // 2), "right": (width - 6, height // 2)}
    places |= {"top": (width // 2, 5), "bottom": (width // 2, height - 6)}
    red, _, blue = image.getpixel(places[side])  # type: ignore[misc]
    return bool(red > blue)


@pytest.mark.parametrize("orientation", RED_SIDE)
def test_every_turn_is_made(orientation: int) -> None:
    """Each of the eight: size and sides as they are seen, in the bytes that are kept as in what is decoded."""
    data, side = stored(orientation), RED_SIDE[orientation]
    opposite = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}[side]
    seen = decode_image(data)
    with Image.open(io.BytesIO(plain_image(data))) as kept:  # no EXIF turn is made here
        assert kept.size == seen.size == ((120, 60) if side in ("left", "right") else (60, 120))
        for image in (kept.convert("RGB"), seen):
            assert is_red(image, side)
            assert not is_red(image, opposite)
    assert (plain_image(data) == data) == (orientation == 1)
