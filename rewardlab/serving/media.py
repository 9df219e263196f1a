"""Images of requests: data URLs, and uploads kept in memory under the hash of their content."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from rewardlab.data.images import from_data_url, plain_image
from rewardlab.errors import MediaError

MAX_IMAGE_BYTES = 20_000_000
MAX_STORE_BYTES = 1_000_000_000


class UploadStore:
    """Holds checked images up to a total size; the least recently used leave first."""

    def __init__(self, max_bytes: int = MAX_STORE_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._images: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()  # requests are served by several threads

    def add(self, data: bytes) -> str:
        """Keep an image and return its id. Raises MediaError for what is no usable image."""
        data = checked(data, "upload")
        name = hashlib.sha256(data).hexdigest()[:32]
        with self._lock:
            if name not in self._images:
                self._images[name] = data
                self._bytes += len(data)
            self._images.move_to_end(name)
            while self._bytes > self._max_bytes and len(self._images) > 1:
                self._bytes -= len(self._images.popitem(last=False)[1])
        return name

    def get(self, name: str) -> bytes:
        """Raises MediaError for an unknown id."""
        with self._lock:
            if name not in self._images:
                raise MediaError(f"upload {name!r} is not here (never sent, or displaced by newer ones); send it again")
            self._images.move_to_end(name)
            return self._images[name]


def checked(data: bytes, where: str) -> bytes:
    """The image, as :func:`plain_image` gives it, if it is one of a bearable size. Raises MediaError."""
    if len(data) > MAX_IMAGE_BYTES:
        raise MediaError(f"{where}: {len(data):,} bytes, more than {MAX_IMAGE_BYTES:,}; resize it first")
    return plain_image(data, where=where)


def resolve(reference: str, store: UploadStore, number: int) -> bytes:
    """The bytes that an image reference of a request stands for. Raises MediaError."""
    where = f"image {number}"
    if reference.startswith("upload:"):
        return store.get(reference.removeprefix("upload:"))
    if reference.startswith("data:"):
        return checked(from_data_url(reference), where)
    raise MediaError(f"{where}: expected a data URL or upload:ID, got {reference[:40]!r}; URLs and paths are not fetched")
