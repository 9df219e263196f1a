"""What all requests in progress hold together, bytes and comparisons. Who comes when there is no room comes again later."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardlab.serving.errors import OverloadedError
from rewardlab.serving.limits import Limits
from rewardlab.serving.request_context import TENANT

RETRY_S = 2  # seconds after which there may be room


class Admission:
    """The room of a server. Where there ``are_keys`` a tenant may hold as many bytes as are free: so one alone never has more
    than half of them."""

    def __init__(self, limits: Limits, *, are_keys: Callable[[], bool] = lambda: False) -> None:
        self.limits, self._are_keys = limits, are_keys
        self.num_bytes = 0
        self._bytes: Counter[str] = Counter()  # by tenant
        self._comparisons: Counter[str] = Counter()

    def open(self, tenant: str) -> Share:
        """Return what a new request holds: nothing yet."""
        return Share(self, tenant)

    def take_bytes(self, tenant: str, number: int) -> None:
        """Hold more bytes, or raise OverloadedError."""
        free = self.limits.held_bytes - self.num_bytes
        if number > free or (self._are_keys() and self._bytes[tenant] + number > free):
            raise OverloadedError(RETRY_S, "other requests hold as many bytes as this server does (its --limit held_bytes)")
        self.num_bytes += number
        self._bytes[tenant] += number

    def take_comparisons(self, tenant: str, number: int) -> None:
        """Begin more comparisons, or raise OverloadedError."""
        if self._comparisons[tenant] + number > self.limits.key_comparisons:
            raise OverloadedError(
                RETRY_S,
                f"{self._comparisons[tenant]:,} comparisons are in progress, and this server takes at most "
                f"{self.limits.key_comparisons:,} of one key at a time (its --limit key_comparisons)",
            )
        self._comparisons[tenant] += number

    def release(self, tenant: str, num_bytes: int, comparisons: int) -> None:
        self.num_bytes -= num_bytes
        self._bytes[tenant] -= num_bytes
        self._comparisons[tenant] -= comparisons
        for counter in (self._bytes, self._comparisons):
            if not counter[tenant]:
                del counter[tenant]


class Share:
    """What one request, or the work for a group of them, holds until it ends. What a released one takes is not counted: nobody
    would release it."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self.admission, self.tenant = admission, tenant
        self.num_bytes = self.comparisons = 0
        self._is_released = False

    def take_bytes(self, number: int) -> None:
        """Hold more bytes. Raises OverloadedError where there is no room."""
        if not self._is_released:
            self.admission.take_bytes(self.tenant, number)
            self.num_bytes += number

    def take_comparisons(self, number: int) -> None:
        """Begin more comparisons. Raises OverloadedError where there is no room."""
        if not self._is_released:
            self.admission.take_comparisons(self.tenant, number)
            self.comparisons += number

    def release(self) -> None:
        self.admission.release(self.tenant, self.num_bytes, self.comparisons)
        self.num_bytes = self.comparisons = 0
        self._is_released = True


SHARE: ContextVar[Share | None] = ContextVar("SHARE", default=None)  # of the request that is being answered


def hold_bytes(number: int) -> None:
    """Count more bytes as the request's; outside of one there is nothing to count."""
    if share := SHARE.get():
        share.take_bytes(number)


def begin_comparisons(number: int) -> None:
    """Count more comparisons as the request's; outside of one there is nothing to count."""
    if share := SHARE.get():
        share.take_comparisons(number)


@contextlib.contextmanager
def separate_share() -> Iterator[None]:
    """Count what is held and begun within it by itself: the work for a group does not end with the request that began it."""
    if (share := SHARE.get()) is None:
        yield
        return
    separate = share.admission.open(share.tenant)
    token = SHARE.set(separate)
    try:
        yield
    finally:
        SHARE.reset(token)
        separate.release()


class BodyLimit:
    """ASGI middleware: a request whose body grows beyond ``body_bytes``, or what its key may send (``scope["max_bytes"]``), is
    answered with 413 and read no further. What it holds is counted until it is answered."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, most = 0, self._admission.limits.body_bytes
        most = min(most, scope.get("max_bytes", most))
        share = self._admission.open(TENANT.get())

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(413, f"the request is larger than {most:,} bytes; upload its images first, or resize them")
            try:
                share.take_bytes(len(message.get("body", b"")))
            except OverloadedError as error:  # what reads a body passes on this kind alone
                headers = {"Retry-After": str(error.retry_after_s)}
                raise HTTPException(429, str(error), headers=headers) from error
            return message

        token = SHARE.set(share)
        try:
            await self._app(scope, receive_limited, send)
        finally:
            SHARE.reset(token)
            share.release()
