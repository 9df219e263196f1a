"""Images and videos of requests: data URLs, uploads, and files that the server may fetch or open.

Nothing else is fetched or opened: a URL must begin with an allowed one, on the same host and port; redirects are not followed;
a name leads to nothing outside the folder.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from rewardlab.data.images import from_data_url, plain_image
from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES, AllowedUrls, fetch_media
from rewardlab.data.video import DecodingBounds, frames_of_video
from rewardlab.errors import ConfigError, MediaError
from rewardlab.serving.limits import Limits
from rewardlab.serving.request_context import TENANT
from rewardlab.serving.uploads import UploadStore

MAX_CHECKED_BYTES = 200_000_000
MAX_URL_CHARS = 8192


class MediaStore:
    """Bytes by name up to a total size; the least recently used are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._items: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()  # requests are served by several threads

    def add(self, name: str, data: bytes) -> None:
        with self._lock:
            if name not in self._items:
                self._items[name] = data
                self._bytes += len(data)
            self._items.move_to_end(name)
            while self._bytes > self._max_bytes and len(self._items) > 1:
                self._bytes -= len(self._items.popitem(last=False)[1])

    def get(self, name: str) -> bytes | None:
        with self._lock:
            if name in self._items:
                self._items.move_to_end(name)
            return self._items.get(name)


class Media:
    """The sources of a request's media. ``allowed_urls`` are beginnings of URLs, ``folder`` holds the files of ``media:NAME``,
    ``uploads`` those of ``upload:ID`` (default: a temporary store); decoding is held to ``limits``.

    Raises ConfigError for an allowed URL without host or path, and a folder that is none.
    """

    def __init__(
        self,
        *,
        allowed_urls: Sequence[str] = (),
        folder: Path | None = None,
        uploads: UploadStore | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._urls = AllowedUrls(allowed_urls)
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder of media")
        self._folder = None if folder is None else folder.resolve()
        self._uploads, self._checked = uploads or UploadStore(), MediaStore(MAX_CHECKED_BYTES)

    def upload(self, data: bytes, *, video: bool = False, is_stopped: Callable[[], bool] = lambda: False) -> str:
        """Store an image or video, and return its id. Raises MediaError for what is neither."""
        if video:
            frames_of_video(data, 1, where="upload", bounds=self._video_bounds(is_stopped))
        else:
            data = self.plain(data, "upload")
        return self._uploads.add(data)

    def uploaded(self, name: str) -> Path:
        """Return the file of what was uploaded under an id. Raises MediaError where nothing is there."""
        if (path := self._uploads.path(name)) is None:
            raise _no_upload(name)
        return path

    def image(self, reference: str, number: int = 0) -> bytes:
        """Return the image of a reference, as :func:`plain_image` gives it. Raises MediaError."""
        where = f"image {number}"
        return self.plain(self.read(reference, where), where)

    def read(self, reference: str, where: str, *, video: bool = False) -> bytes:
        """Return the bytes of a reference as they are. Raises MediaError."""
        return self._bytes(reference, where, MAX_VIDEO_BYTES if video else MAX_IMAGE_BYTES)

    def frames(
        self, data: bytes, num_frames: int, where: str, is_stopped: Callable[[], bool] = lambda: False
    ) -> tuple[bytes, ...]:
        """Return frames of a video that :meth:`read` gives. Raises MediaError."""
        return frames_of_video(data, num_frames, where=where, bounds=self._video_bounds(is_stopped))

    def plain(self, data: bytes, where: str, kept_pixels: int | None = None) -> bytes:
        """Return an image checked by decoding; each is decoded once, for that is most of the work of a request. Of a larger one
        ``kept_pixels`` are kept, or up to four times as many."""
        if len(data) > MAX_IMAGE_BYTES:
            raise MediaError(f"{where}: {len(data):,} bytes, more than {MAX_IMAGE_BYTES:,}; resize it first")
        # How soon it is read tells what others have sent: each tenant has images of its own.
        name = f"{TENANT.get()}:{kept_pixels}:{hashlib.sha256(data).hexdigest()}"
        if (image := self._checked.get(name)) is None:
            image = plain_image(data, where=where, most_pixels=self._limits.pixels, kept_pixels=kept_pixels)
            self._checked.add(name, image)
        return image

    def _video_bounds(self, is_stopped: Callable[[], bool]) -> DecodingBounds:
        return DecodingBounds(self._limits.video_seconds, self._limits.frame_pixels, is_stopped)

    def _bytes(self, reference: str, where: str, max_bytes: int) -> bytes:
        kind, _, rest = reference.partition(":")
        if kind == "upload":
            if (data := self._uploads.get(rest)) is None:
                raise _no_upload(rest)
            return data
        if kind == "data":
            return from_data_url(reference, where=where, max_bytes=max_bytes)
        if kind == "media" and self._folder is not None:
            return self._open(rest, where, max_bytes)
        if kind in ("http", "https") and len(reference) <= MAX_URL_CHARS and self._urls.allows(reference):
            return fetch_media(reference, where, max_bytes)
        accepted = "a data URL or upload:ID" + (", or media:NAME" if self._folder else "")
        raise MediaError(f"{where}: expected {accepted}, got {reference[:40]!r}; other URLs and paths are not fetched")

    def _open(self, name: str, where: str, max_bytes: int) -> bytes:
        assert self._folder is not None
        try:
            path = (self._folder / name).resolve()
            inside = path.is_relative_to(self._folder) and path.is_file()
            data = path.read_bytes() if inside and path.stat().st_size <= max_bytes else None
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise MediaError(f"{where}: media:{name[:80]!r} cannot be read") from error
        if data is None:
            raise MediaError(f"{where}: media:{name[:80]} is no file of the server's folder of at most {max_bytes:,} bytes")
        return data


def _no_upload(name: str) -> MediaError:
    return MediaError(f"upload {name[:40]!r} is not here (never sent, or displaced by newer ones); send it again")
