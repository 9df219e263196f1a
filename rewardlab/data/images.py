"""Encoded images in, decoded images out, and every way an image can be bad named on the way."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from rewardlab.errors import MediaError

MAX_PIXELS = 50_000_000  # about 7,000 x 7,000; a file that claims more is taken for a decompression bomb
MIN_SIDE_PX = 2
MAX_ASPECT = 200  # Qwen's image processors refuse more


def decode_image(data: bytes, *, where: str = "image") -> Image.Image:
    """Decode to RGB. Raises MediaError for an empty, corrupt, too small, too thin or too large image; ``where`` names it."""
    if not data:
        raise MediaError(f"{where}: the file is empty; expected an encoded image (PNG, JPEG, WebP, ...)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
        _check_size(image.size, where)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return image.convert("RGB")
    except Image.DecompressionBombError as error:
        raise MediaError(f"{where}: refused as a decompression bomb ({error}); resize it first") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"{where}: not a readable image ({error}); expected PNG, JPEG, WebP or the like") from error


def _check_size(size: tuple[int, int], where: str) -> None:
    width, height = size
    if min(size) < MIN_SIDE_PX:
        raise MediaError(f"{where}: {width}x{height} px has nothing to see; expected at least {MIN_SIDE_PX} px a side")
    if width * height > MAX_PIXELS:
        raise MediaError(
            f"{where}: refused as a decompression bomb: {width}x{height} px is more than {MAX_PIXELS:,}; resize it first"
        )
    if max(size) > MAX_ASPECT * min(size):
        raise MediaError(f"{where}: {width}x{height} px is thinner than 1:{MAX_ASPECT}; crop or pad it first")


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def read_image(path: Path) -> bytes:
    """The encoded bytes of a file, checked to be an image. Raises MediaError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror}); check --images and the file name") from error
    decode_image(data, where=str(path))
    return data


_SIGNATURES = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"), (b"BM", "bmp"))


def to_data_url(data: bytes) -> str:
    """An encoded image as an RFC 2397 data URL, as the OpenAI API takes it."""
    kind = next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def from_data_url(url: str) -> bytes:
    """The bytes of a base64 data URL. Raises MediaError for any other form."""
    head, comma, body = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise MediaError("expected an image as a data URL: data:image/png;base64,...")
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise MediaError(f"the data URL is not valid base64 ({error})") from error


def blank_like(data: bytes) -> bytes:
    """A grey image of the same size: what a judge is shown when it must do without seeing."""
    return encode_png(Image.new("RGB", decode_image(data).size, (240, 240, 240)))
