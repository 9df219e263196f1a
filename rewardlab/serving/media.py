"""Images and videos of requests: data URLs, uploads, allowed URLs, and files of the server's folder.

A URL must begin with an allowed one, on the same host and port; redirects are not followed; a name cannot leave the folder.
Media are loaded in threads, within budgets of memory, at the size that the judge's processor uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi.concurrency import run_in_threadpool

from rewardlab.data.images import decoding_bytes, from_data_url, plain_image
from rewardlab.data.urls import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES, AllowedUrls, RemoteMedia
from rewardlab.data.video import DecodingBounds, frames_of_video, video_pixels
from rewardlab.errors import ConfigError, MediaError
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import local_checkpoint
from rewardlab.serving.admission import SHARE
from rewardlab.serving.limits import Limits
from rewardlab.serving.request_record import tenant_of_request
from rewardlab.serving.uploads import UploadStore

P = ParamSpec("P")
T = TypeVar("T")
IsStopped = Callable[[], bool]  # whether nobody waits for the work any more


class WorkBudget:
    """Up to ``max_bytes`` in use at a time, by turns of the tenants: the next work is that of the tenant that has taken the
    fewest bytes so far, and of one tenant first come, first served. Small work does not overtake large work, which would never
    begin. A tenant holds ``most_of_one`` bytes at most; None: all."""

    def __init__(self, max_bytes: int, most_of_one: int | None = None) -> None:
        self._max_bytes = self._free = max_bytes
        self._most_of_one = most_of_one or max_bytes
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._start: dict[str, int] = {}  # of each waiting tenant's turn, in bytes taken (start-time fair queueing)
        self._held: Counter[str] = Counter()
        self._now = 0

    @contextlib.asynccontextmanager
    async def taken(self, num_bytes: int) -> AsyncIterator[Room]:
        """Wait for room, and hold it within the context, or until the last thread of :func:`run_in_thread` that uses it ends.
        Work larger than a tenant may hold takes all of that."""
        tenant, num_bytes = tenant_of_request(), min(num_bytes, self._most_of_one)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append((num_bytes, turn))
        self._start[tenant] = max(self._start.get(tenant, 0), self._now)
        self._grant()
        try:
            await turn
        except BaseException:
            if turn.cancelled() or not turn.done():
                turn.cancel()
            else:
                self._release(tenant, num_bytes)
            self._grant()
            raise
        room = Room(partial(self.give_back, tenant), num_bytes)
        try:
            yield room
        finally:
            room.leave()

    def give_back(self, tenant: str, num_bytes: int) -> None:
        self._release(tenant, num_bytes)
        self._grant()

    def _release(self, tenant: str, num_bytes: int) -> None:
        self._free += num_bytes
        self._held[tenant] -= num_bytes
        if not self._held[tenant]:
            del self._held[tenant]

    def _grant(self) -> None:
        while (tenant := self._next_tenant()) is not None:
            num_bytes, turn = self._waiting[tenant][0]
            if num_bytes > self._free:
                return
            self._waiting[tenant].popleft()
            self._now = self._start[tenant]
            self._start[tenant] += num_bytes
            self._free -= num_bytes
            self._held[tenant] += num_bytes
            turn.set_result(None)

    def _next_tenant(self) -> str | None:
        """Return whose turn it is, of those that may hold more; None if none waits."""
        for tenant, line in list(self._waiting.items()):
            while line and line[0][1].done():  # who has left is not waited for
                line.popleft()
            if not line:
                del self._waiting[tenant]
        if not self._waiting:
            self._start.clear()
            self._now = 0
        ready = [name for name, line in self._waiting.items() if self._held[name] + line[0][0] <= self._most_of_one]
        return min(ready, key=lambda name: self._start[name], default=None)


class Room:
    """The bytes taken from a budget, returned when the last user has left: the context that took them, and threads."""

    def __init__(self, give_back: Callable[[int], None], num_bytes: int) -> None:
        self._give_back, self.num_bytes, self._num_users = give_back, num_bytes, 1

    def shrink(self, num_bytes: int) -> None:
        rest = max(0, self.num_bytes - num_bytes)
        self.num_bytes -= rest
        self._give_back(rest)

    def enter(self) -> None:
        self._num_users += 1

    def leave(self) -> None:
        self._num_users -= 1
        if not self._num_users:
            self._give_back(self.num_bytes)


async def run_in_thread(work: Callable[[IsStopped], T], *rooms: Room, limiter: CapacityLimiter | None = None) -> T:
    """Return the result of ``work``, run in a thread of ``limiter`` (None: the common one); ``work`` can check whether its
    caller has gone.

    A thread cannot be cancelled. Until it ends, the ``rooms`` stay in use, and it counts as one of the allowed threads.
    """
    stopped = threading.Event()

    def leave(task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved even if cancelled, because no client is waiting for it
        for room in rooms:
            room.leave()

    for room in rooms:
        room.enter()
    task = asyncio.create_task(run_sync(_unless_stopped, work, stopped, limiter=limiter))
    task.add_done_callback(leave)
    try:
        return await asyncio.shield(task)
    finally:
        stopped.set()


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, WorkBudget] = WeakKeyDictionary()


async def run_in_turn(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of long Python code, run in a thread, one at a time by turns of the tenants: the event loop waits for
    the interpreter behind all threads that run Python, seconds behind forty."""
    async with _TURNS.setdefault(asyncio.get_running_loop(), WorkBudget(1)).taken(1) as turn:
        return await run_in_thread(lambda is_stopped: work(*args, **kwargs), turn)


def _unless_stopped(work: Callable[[IsStopped], T], stopped: threading.Event) -> T:
    if stopped.is_set():  # the caller went while the work waited for a thread
        raise asyncio.CancelledError
    return work(stopped.is_set)


MAX_CHECKED_BYTES = 200_000_000
MAX_URL_CHARS = 8192


class MediaStore:
    """Bytes by name up to a total size, the most recently used ones."""

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
    """The sources of a request's media. ``allowed_urls`` are prefixes of URLs, ``folder`` holds the files of ``media:NAME``,
    ``uploads`` those of ``upload:ID`` (default: a temporary store); ``limits`` bound decoding.

    Raise ConfigError for an allowed URL without host or path, and for a missing folder.
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
        """Store an image or video, and return its id. Raise MediaError for another file."""
        if video:
            frames_of_video(data, 1, where="upload", bounds=self._video_bounds(is_stopped))
        else:
            data = self.plain(data, "upload")
        return self._uploads.add(data)

    def uploaded(self, name: str) -> Path:
        """Return the file of an upload by its id. Raise MediaError if it is missing."""
        if (path := self._uploads.path(name)) is None:
            raise _no_upload(name)
        return path

    def image(self, reference: str, number: int = 0) -> bytes:
        """Return the image of a reference as :func:`plain_image` returns it. Raise MediaError."""
        where = f"image {number}"
        return self.plain(self.read(reference, where), where)

    def read(self, reference: str, where: str, *, video: bool = False) -> bytes:
        return self._bytes(reference, where, MAX_VIDEO_BYTES if video else MAX_IMAGE_BYTES)

    def remote(self, reference: str, where: str) -> RemoteMedia:
        """Return what an allowed URL leads to. Raise MediaError."""
        if len(reference) > MAX_URL_CHARS or not self._urls.allows(reference):
            raise self._refused(reference, where)
        return RemoteMedia(reference, where)

    def frames(
        self, data: bytes, num_frames: int, where: str, is_stopped: Callable[[], bool] = lambda: False
    ) -> tuple[bytes, ...]:
        """Return frames of a video from :meth:`read`. Raise MediaError."""
        return frames_of_video(data, num_frames, where=where, bounds=self._video_bounds(is_stopped))

    def plain(self, data: bytes, where: str, kept_pixels: int | None = None) -> bytes:
        """Return an image checked by decoding. Each is decoded once: decoding is most of the work of a request. A larger image
        is reduced to ``kept_pixels``, or up to four times as many."""
        if len(data) > MAX_IMAGE_BYTES:
            raise MediaError(f"{where}: {len(data):,} bytes, more than {MAX_IMAGE_BYTES:,}; resize it first")
        if (image := self.known(data, kept_pixels)) is None:
            image = plain_image(data, where=where, most_pixels=self._limits.pixels, kept_pixels=kept_pixels)
            self._checked.add(_name_of(data, kept_pixels), image)
        return image

    def known(self, data: bytes, kept_pixels: int | None = None) -> bytes | None:
        """Return what :meth:`plain` returned for the same image of the tenant, None if it has not been decoded."""
        return self._checked.get(_name_of(data, kept_pixels))

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
        if is_url(reference):
            with contextlib.closing(self.remote(reference, where)) as remote:
                return remote.read(max_bytes)
        raise self._refused(reference, where)

    def _refused(self, reference: str, where: str) -> MediaError:
        accepted = "a data URL or upload:ID" + (", or media:NAME" if self._folder else "")
        cure = "other URLs and paths are not fetched, unless --allow-url or --media of the server allows them"
        return MediaError(f"{where}: expected {accepted}, got {reference[:40]!r}; {cure}")

    def _open(self, name: str, where: str, max_bytes: int) -> bytes:
        assert self._folder is not None
        try:
            path = (self._folder / name).resolve()
            inside = path.is_relative_to(self._folder) and path.is_file()
            data = path.read_bytes() if inside and path.stat().st_size <= max_bytes else None
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise MediaError(f"{where}: media:{name[:80]!r} cannot be read") from error
        if data is None:
            raise MediaError(f"{where}: media:{name[:80]} is not a file of at most {max_bytes:,} bytes in the media folder")
        return data


def _name_of(data: bytes, kept_pixels: int | None) -> str:
    """Return the key of a checked image. A fast answer would reveal what others have sent: each tenant has its own entries."""
    return f"{tenant_of_request()}:{kept_pixels}:{hashlib.sha256(data).hexdigest()}"


def is_url(reference: str) -> bool:
    return reference.startswith(("http:", "https:"))


def _no_upload(name: str) -> MediaError:
    return MediaError(f"upload {name[:40]!r} does not exist (never sent, or displaced by newer uploads); send it again")


FRAMES_HELD = 20  # a decoder keeps up to 16 frames for those that come, and one is being shown
FRAME_BYTES = 2  # a pixel of such a frame, about
FETCHES_AT_A_TIME = 40
SHORT_CHARS = 100_000  # of a data URL that is looked for without a thread
VIDEOS_AT_A_TIME = max(1, min(16, os.cpu_count() or 1))  # decoded at a time: more would take all threads


class MediaLoader:
    """Loads ``media``. An image with four times ``kept_pixels`` or more is reduced, to ``kept_pixels`` at least."""

    def __init__(self, media: Media, limits: Limits, kept_pixels: int | None = None) -> None:
        self.media, self._limits, self._kept_pixels = media, limits, kept_pixels
        self._images, self._videos = _Budgets(limits.decoding_bytes), _Budgets(limits.decoding_bytes)
        self._hosts = WorkBudget(FETCHES_AT_A_TIME, FETCHES_AT_A_TIME // 2)

    async def images(self, references: Sequence[str], loaded: dict[str, bytes] | None = None) -> tuple[bytes, ...]:
        """Return the images of references. ``loaded``: those of the same request so far, to which they are added: an upload
        that many answers name is read once."""
        loaded = {} if loaded is None else loaded
        for n, reference in enumerate(references):
            if reference not in loaded:
                loaded[reference] = await self._image(reference, f"image {n}")
                await asyncio.sleep(0)  # a group may have thousands that were checked before
        return tuple(loaded[reference] for reference in references)

    async def frames(self, reference: str, number: int, place: int = 0) -> tuple[bytes, ...]:
        """Return frames of the video of a reference. Raise as :meth:`images` does."""
        where = f"video {place}"

        def decode(data: bytes, is_stopped: IsStopped) -> tuple[bytes, ...]:
            return self.media.frames(data, number, where, is_stopped)

        frames = await self._load(self._videos, reference, where, MAX_VIDEO_BYTES, self._video_bytes, decode)
        SHARE.get().take_bytes(sum(map(len, frames)))
        return frames

    async def upload(self, data: bytes, *, video: bool) -> str:
        """Store an upload, and return its id. Raise MediaError."""
        budgets = self._videos if video else self._images
        num_bytes = await run_in_threadpool(self._video_bytes if video else _image_bytes, data, "upload")
        async with budgets.decoded(num_bytes).taken(num_bytes) as room:
            return await run_in_thread(lambda is_stopped: self.media.upload(data, video=video, is_stopped=is_stopped), room)

    async def uploaded(self, name: str) -> Path:
        """Return the file of an upload by its id. Raise MediaError."""
        return await run_in_threadpool(self.media.uploaded, name)

    async def _image(self, reference: str, where: str) -> bytes:
        def decode(data: bytes, is_stopped: IsStopped) -> bytes:
            return self.media.plain(data, where, self._kept_pixels)

        image = None
        if reference.startswith("data:") and len(reference) <= SHORT_CHARS:  # to look for it takes less than a thread does
            image = self.media.known(self.media.read(reference, where), self._kept_pixels)
        if image is None:
            image = await self._load(self._images, reference, where, MAX_IMAGE_BYTES, _image_bytes, decode)
        SHARE.get().take_image(image)
        return image

    async def _load(
        self,
        budgets: _Budgets,
        reference: str,
        where: str,
        most: int,
        decoding_bytes: Callable[[bytes, str], int],
        decode: Callable[[bytes, IsStopped], T],
    ) -> T:
        """Return what the medium of a reference, of at most ``most`` bytes, decodes to. No room is held while the host of a URL
        is waited for; one tenant has half of the turns at URLs at most."""

        def measure(data: bytes) -> int:
            return decoding_bytes(data, where)

        if not is_url(reference):
            # a data URL has more characters than bytes
            num_bytes = min(len(reference), most) if reference.startswith("data:") else most
            read = partial(self.media.read, reference, where, video=budgets is self._videos)
            return await budgets.load(num_bytes, read, measure, decode)
        async with self._hosts.taken(1) as turn:
            remote = await run_in_thread(partial(_opened, self.media, reference, where), turn, limiter=_fetching())
            with contextlib.closing(remote):
                num_bytes = most if remote.num_bytes is None else min(most, remote.num_bytes)
                return await budgets.load(num_bytes, partial(remote.read, most), measure, decode, is_url=True)

    def _video_bytes(self, data: bytes, where: str) -> int:
        """Return the approximate bytes for decoding a video, at least so many that :data:`VIDEOS_AT_A_TIME` fit."""
        num_bytes = FRAMES_HELD * FRAME_BYTES * video_pixels(data, where, most_pixels=self._limits.frame_pixels)
        return max(num_bytes, self._limits.decoding_bytes // VIDEOS_AT_A_TIME)


SMALL = 64  # work of a 64th of a budget or less has a quarter of it more for itself, and waits for no large work


class _Budgets:
    """``max_bytes`` for decoding, and as many for encoded files that wait for decoding, and again for those that are fetched:
    a slow host holds up no data, and one tenant's URLs hold half of it at most. Work always takes that of encoded files first,
    so that there is no deadlock."""

    def __init__(self, max_bytes: int) -> None:
        self.encoded, self.fetched = WorkBudget(max_bytes), WorkBudget(max_bytes, max_bytes // 2)
        self._decoded, self._small, self._most_small = WorkBudget(max_bytes), WorkBudget(max_bytes // 4), max_bytes // SMALL

    def decoded(self, num_bytes: int) -> WorkBudget:
        return self._small if num_bytes <= self._most_small else self._decoded

    async def load(
        self,
        most_bytes: int,
        read: Callable[[], bytes],
        decoding_bytes: Callable[[bytes], int],
        decode: Callable[[bytes, IsStopped], T],
        *,
        is_url: bool = False,
    ) -> T:
        """Return the decoded result of ``read``, which returns at most ``most_bytes``; ``decoding_bytes`` says how many its
        decoding takes."""

        def read_and_measure(is_stopped: IsStopped) -> tuple[bytes, int]:
            data = read()
            return data, decoding_bytes(data)

        async with (self.fetched if is_url else self.encoded).taken(most_bytes) as encoded:
            data, num_bytes = await run_in_thread(read_and_measure, encoded, limiter=_fetching() if is_url else None)
            encoded.shrink(len(data))
            async with self.decoded(num_bytes).taken(num_bytes) as decoded:
                return await run_in_thread(partial(decode, data), encoded, decoded)


def _opened(media: Media, reference: str, where: str, is_stopped: IsStopped) -> RemoteMedia:
    remote = media.remote(reference, where)
    if is_stopped():  # nobody waits for it any more
        remote.close()
        raise asyncio.CancelledError
    return remote


_LIMITERS: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()


def _fetching() -> CapacityLimiter:
    """Return the limit of threads that fetch, apart from those that decode and check."""
    return _LIMITERS.setdefault(asyncio.get_running_loop(), CapacityLimiter(FETCHES_AT_A_TIME))


def _image_bytes(data: bytes, where: str) -> int:
    return decoding_bytes(data)


def processor_pixels(judge: ModelJudge) -> int | None:
    """Return the most pixels that the image processor of a judge's checkpoint keeps of an image, None if that is unknown, or
    if the judge may look again at a part of it."""
    folder = None if judge.looks else local_checkpoint(judge.spec)
    for name in ("processor_config.json", "preprocessor_config.json"):
        if folder is not None and (folder / name).is_file():
            config = json.loads((folder / name).read_text(encoding="utf-8"))
            config = config.get("image_processor") or config
            most = (config.get("size") or {}).get("longest_edge") or config.get("max_pixels")
            # Other families give an edge in pixels, not an area: images would become far too small.
            return int(most) if most and most > 10_000 else None
    return None
