"""Encoded images in, decoded images out, and every way an image can be bad named on the way."""

from __future__ import annotations

import base64
import io
import math
import sys
import unicodedata
import warnings
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from PIL import Image, UnidentifiedImageError

from rewardlab.errors import MediaError
from rewardlab.reporting.progress import log_line

MAX_PIXELS = 50_000_000  # about 7,000 x 7,000; a file that claims more is taken for a decompression bomb
MIN_SIDE_PX = 2
SMALL_BYTES = 50_000  # of a picture that a page takes as it is
MAX_BYTE, MAX_GREY = 255, 65_535  # of 8 and of 16 bits
PART_PIXELS = 4_000_000  # of a part of an image, at most: models read fewer, and a hostile judgment may look at all of it
MAX_ASPECT = 200  # Qwen's image processors refuse more
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # the rest of Pillow's decoders are rarely wanted and much attacked
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
STRIP_PX = 256  # rows that are made opaque at a time
Edges = Callable[[int, int], tuple[int, int, int, int]]  # of a part, from width and height: left, top, right, bottom in px
_EMPTY = f"the file is empty; expected one of {', '.join(FORMATS)}"


def decode_image(
    data: bytes,
    *,
    where: str = "image",
    enough_px: int | None = None,
    most_pixels: int = MAX_PIXELS,
    kept_pixels: int | None = None,
) -> Image.Image:
    """Decode to RGB, turned upright (EXIF), transparency on white. With ``enough_px`` a JPEG may come smaller than it is, by a
    power of two, its sides at least as long as that: several times as fast.

    One with four times ``kept_pixels`` or more is made smaller by a whole factor, which leaves it that many at least. Raises
    MediaError for an empty, corrupt, too small or too thin image, and one of more than ``most_pixels``; ``where`` names it.
    """
    if not data:
        raise MediaError(f"{where}: {_EMPTY}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.size, where, most_pixels)
        if enough_px:
            image.draft(None, (enough_px, enough_px))
        elif (factor := _factor(image.size, kept_pixels)) > 1:
            image.draft(None, (image.width // factor, image.height // factor))  # a JPEG is decoded smaller at once
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise MediaError(f"{where}: refused as a decompression bomb ({error}); resize it first") from error
    except Exception as error:  # the boundary: decoders fail on hostile bytes in every way there is
        raise MediaError(f"{where}: not a readable image ({_why(error)}); expected one of {', '.join(FORMATS)}") from error
    return plain_pixels(image, where=where, factor=_factor(image.size, kept_pixels))


def plain_pixels(image: Image.Image, *, where: str = "image", factor: int = 1) -> Image.Image:
    """Return what a person sees of an opened image: RGB, upright (EXIF), transparency on white, smaller by ``factor``. Returns
    the image itself if it is all of that. Raise MediaError for one that cannot be decoded, or has no 8 or 16 bits a value."""
    try:
        image = _of_known_mode(image)
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            upright = _on_white(image, factor, where)
        if turn is None:
            return upright
        turned = upright.transpose(turn)
        turned.info.clear()  # it says which way to turn, and is copied: nobody shall turn it again
        return turned
    except MediaError:
        raise
    except Exception as error:  # the boundary: decoders fail on hostile bytes in every way there is
        raise MediaError(f"{where}: not a readable image ({_why(error)}); expected one of {', '.join(FORMATS)}") from error


def plain_png(image: Image.Image, *, where: str = "image") -> bytes:
    """Return :func:`plain_pixels` of an image in memory as a PNG. Raise MediaError for what :func:`decode_image` refuses."""
    _check_size(image.size, where)
    return encode_png(plain_pixels(image, where=where))


def _factor(size: tuple[int, int], kept_pixels: int | None) -> int:
    """Return by how much both sides may be divided that so many pixels are left, 1 at least."""
    return 1 if kept_pixels is None else max(1, math.isqrt(size[0] * size[1] // kept_pixels))


def decoding_bytes(data: bytes) -> int:
    """Return about how many bytes of memory decoding takes, by what the header says; 0 where there is no readable one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return 8 * image.width * image.height  # four a pixel, as it is stored and as it is shown
    except Exception:  # the boundary: who decodes it says what is wrong
        return 0


def _why(error: Exception) -> object:
    """Return an error of Pillow; that of an unknown kind of file would name an object in memory."""
    return "its first bytes are of no image format" if isinstance(error, UnidentifiedImageError) else error


def check_image(source: bytes | Path, *, where: str = "image") -> tuple[int, int]:
    """Return (width, height) of an image. Raise MediaError if its first and last bytes show it to be none: another kind of
    file, too large, too small, too thin, or cut off; of a PNG in memory also by its check sums. It is decoded only where one is
    wrong, or its end is not at the end of the file: that takes a hundred times as long.
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
    is_whole = kind in _ENDS and _ENDS[kind] in _last_bytes(source)
    if not is_whole or (kind == "PNG" and isinstance(source, bytes) and not _has_sound_chunks(source)):
        decode_image(source if isinstance(source, bytes) else source.read_bytes(), where=where)  # cut off, or more behind it
    return size


def _has_sound_chunks(data: bytes) -> bool:
    """Return whether the check sums of a PNG are right: a millisecond a megabyte, where decoding takes twenty."""
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            image.verify()
    except Exception:  # the boundary: decoding says whether it matters, and what is wrong
        return False
    return True


_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL = 256  # bytes


def _last_bytes(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source[-_TAIL:]
    with source.open("rb") as file:
        file.seek(max(0, source.stat().st_size - _TAIL))
        return file.read()


def _on_white(image: Image.Image, factor: int, where: str) -> Image.Image:
    """Return an opaque RGB image, smaller by ``factor``; strip by strip where that saves memory of the full size. Raise
    MediaError as :func:`_eight_bits` does."""
    if factor == 1 and not image.has_transparency_data:
        image.load()
        return image if image.mode == "RGB" else _eight_bits(image, where).convert("RGB")
    small = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    num_rows = factor * max(1, STRIP_PX // factor)
    for top in range(0, image.height, num_rows):
        strip = _eight_bits(image.crop((0, top, image.width, min(top + num_rows, image.height))), where)
        if strip.has_transparency_data:
            rgba = strip.convert("RGBA")
            strip = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        strip = strip.convert("RGB")
        small.paste(strip.reduce(factor) if factor > 1 else strip, (0, top // factor))
    return small


def _of_known_mode(image: Image.Image) -> Image.Image:
    """Return an image whose mode says what its values mean: ``La`` without its factor of alpha, and whole numbers of no file
    (``I``) as 8 bits if they fit."""
    if image.mode == "La":
        return image.convert("LA")
    if image.mode == "I" and image.format is None:
        low, high = cast("tuple[int, int]", image.getextrema())
        return image.convert("L") if low >= 0 and high <= MAX_BYTE else image
    return image


def _eight_bits(image: Image.Image, where: str) -> Image.Image:
    """Return grey of 16 bits (``I;16``, and ``I`` of older Pillows) as the upper eight of them, which Pillow's own conversion
    would cut off at 255; any other image as it is. Raise MediaError for numbers of which nobody knows what is white."""
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > MAX_GREY:
        raise MediaError(f"{where}: its pixels (mode {image.mode}) are not 8- or 16-bit greyscale; save it as an 8-bit PNG")
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    if (transparent := image.info.get("transparency")) is not None:
        grey.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return grey


def plain_image(data: bytes, *, where: str = "image", most_pixels: int = MAX_PIXELS, kept_pixels: int | None = None) -> bytes:
    """Return the image as any decoder shows it alike: the same bytes where they are plain RGB or grey, else a PNG of what is
    seen.

    Transparency, palettes and EXIF turns are read differently by different libraries; training and sampling must not differ.
    Raises MediaError; ``most_pixels`` and ``kept_pixels`` are those of :func:`decode_image`.
    """
    decoded = decode_image(data, where=where, most_pixels=most_pixels, kept_pixels=kept_pixels)
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if getattr(image, "is_animated", False):
            _say_animation(where)
        plain = image.mode in ("RGB", "L") and not image.has_transparency_data and image.getexif().get(_ORIENTATION, 1) == 1
        plain = plain and _factor(image.size, kept_pixels) == 1
    return data if plain else encode_png(decoded)


_SAID = set[str]()  # what this process has logged


def _say_animation(where: str) -> None:
    if "animation" not in _SAID:
        _SAID.add("animation")
        log_line(f"{where}: an animation; judges are shown the first frame of each. Give it as a video to show more")


def _check_size(size: tuple[int, int], where: str, most_pixels: int = MAX_PIXELS) -> None:
    width, height = size
    if min(size) < MIN_SIDE_PX:
        raise MediaError(f"{where}: {width}x{height} px is too small; expected at least {MIN_SIDE_PX} px a side")
    if width * height > most_pixels:
        raise MediaError(
            f"{where}: refused as a decompression bomb: {width}x{height} px is more than {most_pixels:,}; resize it first"
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


def part_of_pixels(image: Image.Image, edges: Edges) -> Image.Image:
    """Return a part of an image, reduced to :data:`PART_PIXELS` if it has more."""
    part = image.crop(edges(*image.size))
    scale = math.sqrt(PART_PIXELS / (part.width * part.height))
    if scale >= 1:
        return part
    size = math.ceil(scale * part.width), math.ceil(scale * part.height)
    return part.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


class Cut(Hashable, Protocol):
    """The name of a part of an image, such as a :class:`rewardlab.verdicts.turns.Look`."""

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return its left, top, right and bottom edge in an image of this size."""
        ...


def part_of_image(data: bytes, cut: Cut) -> bytes:
    """Return :func:`part_of_pixels` as PNG. Raise MediaError for an image that cannot be decoded."""
    return _CUTTING.submit(_part, data, cut).result()


@lru_cache(maxsize=8)  # draws of a prompt look at the same parts
def _part(data: bytes, cut: Cut) -> bytes:
    return encode_png(part_of_pixels(_decoded(data), cut.pixels))


# One large image at a time is decoded for this, in one thread: a thread keeps the memory that it has freed.
_CUTTING = ThreadPoolExecutor(1, thread_name_prefix="parts of images")


@lru_cache(maxsize=1)
def _decoded(data: bytes) -> Image.Image:
    return decode_image(data, most_pixels=sys.maxsize)  # whoever took it has bounded it


def refuse_devices(path: Path, where: str) -> None:
    """Raise MediaError for a path that is something else than a file: a device has no end, and a pipe may never begin."""
    if path.exists() and not path.is_file():
        raise MediaError(f"{where}: not a file; expected an image or a video")


def read_media(file: Path, where: str) -> bytes:
    """Return the bytes of a media file. Raises MediaError."""
    try:
        refuse_devices(file, where)
        return file.read_bytes()
    except MediaError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        other = _other_spelling(file)
        cure = f"there is {other}, whose name is spelt otherwise" if other else "check --images and the file name"
        raise MediaError(f"{where}: cannot be read ({why}); {cure}") from error


def _other_spelling(file: Path) -> Path | None:
    """Return the file that a path names in another case, with ``/`` for ``\\``, with %20 for a blank, or in another form of
    Unicode; None if there is none."""

    try:
        spelt = Path(file.anchor)
        for name in Path(str(file).replace("\\", "/").replace("%20", " ")).parts[bool(file.anchor) :]:
            if (spelt / name).exists() or name == "..":
                spelt /= name
            else:
                spelt /= _names_in(spelt, spelt.stat().st_mtime_ns)[_plain_name(name)]
    except (OSError, ValueError, KeyError):
        return None
    return spelt if spelt != file else None


@lru_cache(maxsize=8)
def _names_in(folder: Path, _changed_ns: int) -> dict[str, str]:
    """Return the names in a folder by :func:`_plain_name`: a set may miss thousands of files of one folder."""
    return {_plain_name(file.name): file.name for file in folder.iterdir()}


def _plain_name(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def read_image(path: Path, *, where: str = "") -> bytes:
    """Return a file's image, checked, as :func:`plain_image` gives it. Raises MediaError; ``where`` names it in place of its
    path."""
    where = where or str(path)
    return plain_image(read_media(path, where), where=where)


_SIGNATURES = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"), (b"BM", "bmp"))


def kind_of(data: bytes, unknown: str = "png") -> str:
    """Return the suffix of an encoded image or video by its first bytes; ``unknown`` where they say nothing."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "mkv"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    return next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), unknown)


def to_data_url(data: bytes) -> str:
    """Return an encoded image as an RFC 2397 data URL, as the OpenAI API takes it."""
    kind = kind_of(data)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


BASE64_PIECE = 4_000_000  # characters decoded at a time: other threads wait as long as one piece takes


def from_data_url(url: str, *, where: str = "", max_bytes: int | None = None) -> bytes:
    """Return the bytes of a base64 data URL, ``max_bytes`` at most. Raises MediaError, which begins with ``where``, for any
    other form."""
    prefix = f"{where}: " if where else ""
    head, comma, body = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise MediaError(f"{prefix}expected an image as a data URL: data:image/png;base64,...")
    if max_bytes is not None and len(body) > 4 * (max_bytes // 3 + 1):
        raise MediaError(f"{prefix}more than {max_bytes:,} bytes; resize it first")
    try:
        pieces = [body[start : start + BASE64_PIECE] for start in range(0, len(body), BASE64_PIECE)]
        if any(piece.endswith("=") for piece in pieces[:-1]):
            raise ValueError("padding before its end")
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except ValueError as error:
        raise MediaError(f"{prefix}the data URL is not valid base64 ({error})") from error


def blank_like(data: bytes, shade: int = 240) -> bytes:
    """Return a grey image of the same size: what a judge is shown when it must do without seeing."""
    return encode_png(Image.new("RGB", decode_image(data).size, (shade,) * 3))
