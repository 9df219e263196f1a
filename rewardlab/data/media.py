"""A medium, however it is given, becomes the bytes that a judge is shown: for files, the Python API, mappings and adapters.

An image is ``{"bytes", "path"}`` (``datasets``), encoded bytes, a path, a ``file://`` or data URL, base64, a list of bytes, a
PIL image, an array of (height, width) or (height, width, 3 or 4) of 8 or 16 bits, or an allowed URL. Its pixels are those of
:func:`rewardlab.data.images.plain_image`: upright, transparency on white, 8 bits, of an animation the first frame.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rewardlab.data.files import leads_out
from rewardlab.data.images import from_data_url, kind_of, plain_image, plain_png, read_media
from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES, AllowedUrls, fetch_media
from rewardlab.errors import MediaError

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{60,}+[A-Za-z0-9+/_=\s-]*+")  # no path has so long a part of these characters alone
_WRITTEN = re.compile(r"""^(?:b['"]|[\[{]['"]|<(?:PIL|\w+\.)|\[?\s*\d+\s*,\s*\d+\s*,)""")
_NO_MEDIUM = ("none", "null", "nan", "n/a", "undefined")


@dataclass(frozen=True)
class Files:
    """Where media are: paths start at ``folder``; with ``checked`` embedded images were checked when written.

    A relative path that is outside ``folder`` by ``..`` is refused, unless ``is_callers`` says that the caller and no
    file named it. An absolute path is read, and links are followed. ``urls`` may be fetched. ``undecodable``, for readers that
    do not look at images, takes images that cannot be decoded, with the reason (None: they are errors); a missing image is an
    error all the same.
    """

    folder: Path = Path()
    checked: bool = False
    is_callers: bool = False
    urls: AllowedUrls | None = None
    undecodable: dict[bytes, str] | None = None

    def file_of(self, path: str, where: str) -> Path:
        """Return the file that a row's ``path`` names. Raise MediaError for a relative one out of the folder."""
        path = path.removeprefix("file://")
        if not self.is_callers and leads_out(path):
            raise MediaError(
                f"{where}: {path:.160} is outside {self.folder}, which paths are relative to; set --images to a "
                "folder with all media and use paths relative to it, or absolute paths"
            )
        return self.folder / path

    def image(self, value: Any, where: str) -> bytes:
        """Return an encoded image. Raises MediaError that names ``where``."""
        value = embedded(value)
        if isinstance(value, bytes):
            return value if self.checked else self._plain(value, where)
        if isinstance(value, np.ndarray):
            value = image_of_array(value, where)
        if isinstance(value, Image.Image):
            return plain_png(value, where=where)
        path = path_of_medium(value, "image", where)
        if path.startswith("data:"):
            return self._plain(from_data_url(path, where=where), where)
        if path.startswith(("http://", "https://")):
            return self._plain(self._fetched(path, where, MAX_IMAGE_BYTES), where)
        file = self.file_of(path, where)
        where = place_of(where, file)
        return self._plain(read_media(file, where), where)

    def _plain(self, data: bytes, where: str) -> bytes:
        try:
            return plain_image(data, where=where)
        except MediaError as error:
            if self.undecodable is None or not data:
                raise
            self.undecodable.setdefault(data, str(error))
            return data

    def video(self, value: Any, where: str) -> bytes:
        """Return a video file, undecoded. Raises MediaError."""
        value = embedded(value)
        if isinstance(value, bytes):
            return value
        path = path_of_medium(value, "video", where)
        if path.startswith("data:"):
            return from_data_url(path, where=where)
        if path.startswith(("http://", "https://")):
            return self._fetched(path, where, MAX_VIDEO_BYTES)
        file = self.file_of(path, where)
        where = place_of(where, file)
        if not (data := read_media(file, where)):
            raise MediaError(f"{where}: the file is empty; expected a video")
        return data

    def _fetched(self, url: str, where: str, max_bytes: int) -> bytes:
        if self.urls is None:
            raise MediaError(f"{where}: {url:.80} is not fetched; download it and give its path")
        if not self.urls.allows(url):
            begin = url[: url.rfind("/") + 1] if url.count("/") > 2 else f"{url}/"
            raise MediaError(f"{where}: {url[:80]!r} is not fetched; allow it with allow_urls=[{begin!r}], or download it")
        return fetch_media(url, where, max_bytes)


def embedded(value: Any) -> Any:
    """Return the bytes of a medium that holds them in one of the usual spellings, else its path, URL or object."""
    if isinstance(value, Mapping):
        data = value.get("bytes")
        if isinstance(data, str) and data:
            return _of_base64(data) or value
        is_empty = data is None or (isinstance(data, bytes | str | list) and not data)
        value = value.get("path") if is_empty else data
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple) and len(value) > 8 and all(type(byte) is int and 0 <= byte < 256 for byte in value):
        return bytes(value)
    if isinstance(value, str) and len(value) > 60 and _BASE64.fullmatch(value) and (decoded := _of_base64(value)):
        return decoded
    return value


def _of_base64(text: str) -> bytes | None:
    """Return the image or video that base64 holds, None if it is something else, such as a long name."""
    try:
        data = base64.b64decode(re.sub(r"\s", "", text).translate(str.maketrans("-_", "+/")) + "==")
    except ValueError:
        return None
    return data if kind_of(data, unknown="") else None


def image_of_array(pixels: np.ndarray, where: str) -> Image.Image:
    """Return the image of an array. Raise MediaError for another type or shape of values."""
    if (
        pixels.dtype not in (np.uint8, np.uint16, np.bool_)
        or pixels.ndim not in (2, 3)
        or (pixels.ndim == 3 and (pixels.shape[2] not in (1, 3, 4) or pixels.dtype == np.uint16))
    ):
        raise MediaError(
            f"{where}: an array of {pixels.dtype}, shape {pixels.shape}, is no image; expected (height, width, 3) of uint8"
        )
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def path_of_medium(value: Any, kind: str, where: str) -> str:
    """Return the path or URL of an image or a video (``kind``) without bytes. Raises MediaError if there is none."""
    path = value.get("path") if isinstance(value, Mapping) else value
    if path is None:
        if isinstance(value, Mapping) and value.get("bytes"):
            raise MediaError(f"{where}: its 'bytes' are a text, but no base64 of a medium; give the bytes, or a path")
        raise MediaError(f"{where}: holds neither bytes nor a path; give one of them, or remove the {kind} from the list")
    if not isinstance(path, str):
        raise MediaError(
            f"{where}: expected the path of the {kind}, its bytes, base64, a data URL or a PIL image, got {type(path).__name__}"
        )
    if not path.strip() or path.strip().lower() in _NO_MEDIUM:
        raise MediaError(f"{where}: the path is {path!r}; give the path of a file, or an empty list for no {kind}")
    if _WRITTEN.match(path):
        raise MediaError(f"{where}: {path[:40]!r} is a value of Python written as text, not a path; write the file itself")
    if _URL.match(path) and not path.startswith(("http://", "https://", "file://")):
        raise MediaError(f"{where}: {path:.80} is not fetched; download the {kind} and give its path")
    return path


def place_of(where: str, file: Path) -> str:
    """Return the name of a media file in messages, cut to 160 characters."""
    return f"{where}, {file!s:.160}"
