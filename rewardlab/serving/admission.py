"""Bytes and comparisons that all requests in progress hold. Requests beyond the limits are refused until there is room."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from rewardlab.serving.errors import OverloadedError, RequestTooLargeError
from rewardlab.serving.limits import Limits

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
RETRY_S = 2  # seconds after which there may be room


class Admission:
    """The limits of a server. If there ``are_keys``, a tenant may hold as many bytes as are free, so that one alone never holds
    more than half of them."""

    def __init__(self, limits: Limits, *, are_keys: Callable[[], bool] = lambda: False) -> None:
        self.limits, self._are_keys = limits, are_keys
        self.num_bytes = 0
        self._bytes: Counter[str] = Counter()  # by tenant
        self._images: Counter[tuple[str, int]] = Counter()  # how often an image is held, by tenant and identity
        self._comparisons: Counter[str] = Counter()

    def open(self, tenant: str) -> Share:
        return Share(self, tenant)

    def take_bytes(self, tenant: str, number: int, num_held: int) -> None:
        """Hold more bytes for work that holds ``num_held``. Raise OverloadedError if others leave no room, RequestTooLargeError
        if there would not be enough without them."""
        if not self._fits(number, self._bytes[tenant], self.num_bytes):
            most = self.limits.held_bytes
            if not self._fits(number, num_held, num_held):
                half = ", half of them for one key" if self._are_keys() else ""
                raise RequestTooLargeError(
                    f"the body and images of a request have {num_held + number:,} bytes or more; this server accepts {most:,} "
                    f"(its --limit held_bytes{half}): send less at a time, or smaller images"
                )
            raise OverloadedError(RETRY_S, f"other requests use most of the {most:,} bytes (this server's --limit held_bytes)")
        self.num_bytes += number
        self._bytes[tenant] += number

    def _fits(self, number: int, of_tenant: int, of_all: int) -> bool:
        free = self.limits.held_bytes - of_all
        return number <= free and not (self._are_keys() and of_tenant + number > free)

    def take_image(self, tenant: str, image: bytes, num_held: int) -> None:
        """Hold the bytes of an image, unless the tenant holds them already. Raise as :meth:`take_bytes` does."""
        place = tenant, id(image)
        if not self._images[place]:
            self.take_bytes(tenant, len(image), num_held)
        self._images[place] += 1

    def take_comparisons(self, tenant: str, number: int) -> None:
        """Begin more comparisons, or raise OverloadedError."""
        if self._comparisons[tenant] + number > self.limits.key_comparisons:
            raise OverloadedError(
                RETRY_S,
                f"{self._comparisons[tenant]:,} comparisons are in progress; this server accepts at most "
                f"{self.limits.key_comparisons:,} per key at a time (its --limit key_comparisons)",
            )
        self._comparisons[tenant] += number

    def release(self, tenant: str, num_bytes: int, images: Iterable[bytes], comparisons: int) -> None:
        for image in images:
            self._images[tenant, id(image)] -= 1
            num_bytes += 0 if self._images[tenant, id(image)] else len(image)
            _drop_zero(self._images, (tenant, id(image)))
        self.num_bytes -= num_bytes
        self._bytes[tenant] -= num_bytes
        self._comparisons[tenant] -= comparisons
        _drop_zero(self._bytes, tenant)
        _drop_zero(self._comparisons, tenant)


def _drop_zero(counter: Counter[K], key: K) -> None:
    if not counter[key]:
        del counter[key]


class Share:
    """The bytes and comparisons of a request, of a part of a ``request``, or of the work for a group, until it ends. A released
    share counts nothing more: nobody would release it again."""

    def __init__(self, admission: Admission, tenant: str, request: Share | None = None) -> None:
        self.admission, self.tenant, self.request = admission, tenant, request
        self.parts_holding: set[Share] = set()
        self.parts_wait, self.part_ended = asyncio.Lock(), asyncio.Event()
        self._num_bytes = self._comparisons = 0
        self._images: dict[int, bytes] = {}  # by identity, which an image keeps while it is here
        self._is_released = False

    def part(self) -> Share:
        return self if self is NO_SHARE else Share(self.admission, self.tenant, self.request or self)

    def take_bytes(self, number: int) -> None:
        """Hold more bytes. Raise as :meth:`Admission.take_bytes` does."""
        if not self._is_released:
            self.admission.take_bytes(self.tenant, number, self._held())
            self._num_bytes += number
            self._note()

    def take_image(self, image: bytes) -> None:
        """Hold an image, which counts once. Raise as :meth:`Admission.take_bytes` does."""
        if not self._is_released and id(image) not in self._images:
            self.admission.take_image(self.tenant, image, self._held())
            self._images[id(image)] = image
            self._note()

    def take_comparisons(self, number: int) -> None:
        """Begin more comparisons. Raise OverloadedError beyond the limit."""
        if not self._is_released:
            self.admission.take_comparisons(self.tenant, number)
            self._comparisons += number

    async def load(self, load: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``load``, which holds its bytes. If other parts of the request leave no room, hold nothing and
        wait for them."""
        if (request := self.request) is None:
            return await load()
        with contextlib.suppress(OverloadedError):
            return await self._attempt(load)
        async with request.parts_wait:
            while True:
                request.part_ended.clear()
                try:
                    return await self._attempt(load)
                except OverloadedError:
                    if not request.parts_holding:
                        raise
                await request.part_ended.wait()

    async def _attempt(self, load: Callable[[], Awaitable[T]]) -> T:
        try:
            return await load()
        except OverloadedError:
            self._give_back()
            raise

    def release(self) -> None:
        self._is_released = True
        self._give_back()

    def _give_back(self) -> None:
        self.admission.release(self.tenant, self._num_bytes, self._images.values(), self._comparisons)
        self._num_bytes = self._comparisons = 0
        self._images.clear()
        if self.request:
            self.request.parts_holding.discard(self)
            self.request.part_ended.set()

    def _held(self) -> int:
        """Return the bytes of the request itself and of this part; other parts will release theirs."""
        return (self.request._held() if self.request else 0) + self._num_bytes + sum(map(len, self._images.values()))

    def _note(self) -> None:
        if self.request:
            self.request.parts_holding.add(self)


NO_SHARE = Share(Admission(Limits()), "")  # outside of a request nothing is counted
NO_SHARE.release()
SHARE: ContextVar[Share] = ContextVar("SHARE", default=NO_SHARE)  # of the current request


@contextlib.contextmanager
def separate_share() -> Iterator[None]:
    """Use a share of its own: the work for a group does not end with the request that began it."""
    share = SHARE.get()
    with using_share(share if share is NO_SHARE else share.admission.open(share.tenant)):
        yield


def as_part(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a call with its own share, released when the call ends, before its request does."""

    @functools.wraps(call)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with using_share(SHARE.get().part()):
            return await call(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def using_share(share: Share) -> Iterator[None]:
    token = SHARE.set(share)
    try:
        yield
    finally:
        SHARE.reset(token)
        share.release()
