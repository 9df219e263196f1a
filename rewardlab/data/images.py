"""Encoded images in, decoded images out, and every way an image can be bad named on the way."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from rewardlab.errors import MediaError

MAX_PIXELS = 50_000_000  # about 7,000 x 7,000; a file that claims more is taken for a decompression bomb
MIN_SIDE_PX = 2
SMALL_BYTES = 50_000  # of a picture that a page takes as it is
MAX_ASPECT = 200  # Qwen's image processors refuse more
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # the rest of Pillow's decoders are rarely wanted and much attacked
_ORIENTATION = 0x0112
_EMPTY = f"the file is empty; expected one of {', '.join(FORMATS)}"


def decode_image(data: bytes, *, where: str = "image", enough_px: int | None = None) -> Image.Image:
    """Decode to RGB, turned upright (EXIF), transparency on white. With ``enough_px`` a JPEG may come smaller than it is, by a
    power of two, its sides at least as long as that: several times as fast.

    Raises MediaError for an empty, corrupt, too small, too thin or too large image; ``where`` names it.
    """
    if not data:
        raise MediaError(f"{where}: {_EMPTY}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.size, where)
        if enough_px:
            image.draft(None, (enough_px, enough_px))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return _on_white(ImageOps.exif_transpose(image))
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise MediaError(f"{where}: refused as a decompression bomb ({error}); resize it first") from error
    except Exception as error:  # the boundary: decoders fail on hostile bytes in every way there is
        raise MediaError(f"{where}: not a readable image ({_why(error)}); expected one of {', '.join(FORMATS)}") from error


def _why(error: Exception) -> object:
    """Return an error of Pillow; that of an unknown kind of file would name an object in memory."""
    return "its first bytes are of no image format" if isinstance(error, UnidentifiedImageError) else error


def check_image(source: bytes | Path, *, where: str = "image") -> None:
    """Raise MediaError for an image that its first and last bytes show to be none: another kind of file, too large, too small,
    too thin, or cut off. It is decoded only where its end is not at the end of the file; that takes a hundred times as long.
    """
    try:
        if isinstance(source, Path):
            refuse_devices(source, where)
        if not (len(source) if isinstance(source, bytes) else source.stat().st_size):
            raise MediaError(f"{where}: {_EMPTY}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
                kind, size = image.format, image.size
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise MediaError(f"{where}: refused as a decompression bomb ({error}); resize it first") from error
    except OSError as error:
        if error.strerror:
            raise MediaError(f"{where}: cannot be read ({error.strerror}); check --images and the file name") from error
        raise MediaError(f"{where}: not a readable image ({_why(error)}); expected one of {', '.join(FORMATS)}") from error
    except Exception as error:  # the boundary: decoders fail on hostile bytes in every way there is
        raise MediaError(f"{where}: not a readable image ({_why(error)}); expected one of {', '.join(FORMATS)}") from error
    _check_size(size, where)
    if kind not in _ENDS or _ENDS[kind] not in _last_bytes(source):
        decode_image(source if isinstance(source, bytes) else source.read_bytes(), where=where)  # cut off, or more behind it


_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL = 256  # bytes


def _last_bytes(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source[-_TAIL:]
    with source.open("rb") as file:
        file.seek(max(0, source.stat().st_size - _TAIL))
        return file.read()


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def plain_image(data: bytes, *, where: str = "image") -> bytes:
    """Return the image as any decoder shows it alike: the same bytes where they are plain RGB or grey, else a PNG of what is
    seen.

    Transparency, palettes and EXIF turns are read differently by different libraries; training and sampling must not differ.
    Raises MediaError.
    """
    decoded = decode_image(data, where=where)
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        plain = image.mode in ("RGB", "L") and not image.has_transparency_data and image.getexif().get(_ORIENTATION, 1) == 1
    return data if plain else encode_png(decoded)


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


def thumbnail(data: bytes, side_px: int = 360) -> bytes:
    """Return the image to look at on a page: as it is where it is small, in pixels and in bytes, else a JPEG that fits a square
    of ``side_px``."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if max(image.size) <= side_px and len(data) <= SMALL_BYTES:
            return data
    small = decode_image(data, enough_px=2 * side_px)
    small.thumbnail((side_px, side_px))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=80)
    return buffer.getvalue()


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def refuse_devices(path: Path, where: str) -> None:
    """Raise MediaError for a path that is something else than a file: a device has no end, and a pipe may never begin."""
    if path.exists() and not path.is_file():
        raise MediaError(f"{where}: is no file; expected an image or a video")


def read_image(path: Path, *, where: str = "") -> bytes:
    """Return a file's image, checked, as :func:`plain_image` gives it. Raises MediaError; ``where`` names it in place of its
    path."""
    where = where or str(path)
    try:
        refuse_devices(path, where)
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise MediaError(f"{where}: cannot be read ({why}); check --images and the file name") from error
    return plain_image(data, where=where)


_SIGNATURES = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"), (b"BM", "bmp"))


def kind_of(data: bytes) -> str:
    """Return the suffix of an encoded image or video by its first bytes; "png" where they say nothing."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "mkv"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    return next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), "png")


def to_data_url(data: bytes) -> str:
    """Return an encoded image as an RFC 2397 data URL, as the OpenAI API takes it."""
    kind = kind_of(data)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def from_data_url(url: str, *, where: str = "") -> bytes:
    """Return the bytes of a base64 data URL. Raises MediaError, which begins with ``where``, for any other form."""
    prefix = f"{where}: " if where else ""
    head, comma, body = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise MediaError(f"{prefix}expected an image as a data URL: data:image/png;base64,...")
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise MediaError(f"{prefix}the data URL is not valid base64 ({error})") from error


def blank_like(data: bytes) -> bytes:
    """Return a grey image of the same size: what a judge is shown when it must do without seeing."""
    return encode_png(Image.new("RGB", decode_image(data).size, (240, 240, 240)))
