"""An event loop in a thread of its own, for callers that are not asynchronous: connections outlive a call."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class EventLoopThread(Generic[S]):
    """Runs coroutines about something that is opened once, within the loop, and closed when nothing refers to this any more.

    Usable from several threads. ``open_it`` must not hold this object.
    """

    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self._open_it = open_it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: asyncio.Task[S] | None = None
        self._lock = threading.Lock()
        self._stack = AsyncExitStack()

    def run(self, work: Callable[[S], Awaitable[T]]) -> T:
        """Return or raise what ``work`` does. An interrupt of the caller cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(self._loop,), name="background", daemon=True)
                thread.start()
                weakref.finalize(self, _close, self._loop, self._stack, thread)
        future = asyncio.run_coroutine_threadsafe(self._work(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, make: Callable[[S], AsyncGenerator[T]]) -> Iterator[T]:
        """Yield what an asynchronous generator does, each when it comes; one that is left early is closed."""
        items: AsyncGenerator[T] | None = None

        async def step(opened: S) -> tuple[T, ...]:
            nonlocal items
            items = items or make(opened)
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        async def close(opened: S) -> None:
            with contextlib.suppress(RuntimeError):  # it is being closed already, by an interrupt
                if items is not None:
                    await items.aclose()

        try:
            while item := self.run(step):
                yield item[0]
        finally:
            self.run(close)

    async def _work(self, work: Callable[[S], Awaitable[T]]) -> T:
        if self._opened is None:
            self._opened = asyncio.ensure_future(self._stack.enter_async_context(self._open_it()))
        return await work(await asyncio.shield(self._opened))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _close(loop: asyncio.AbstractEventLoop, stack: AsyncExitStack, thread: threading.Thread) -> None:
    async def close() -> None:
        with contextlib.suppress(Exception):  # a connection that is gone already
            await stack.aclose()
        loop.stop()

    with contextlib.suppress(RuntimeError):  # the interpreter is at its end
        asyncio.run_coroutine_threadsafe(close(), loop)
        if thread is not threading.current_thread():
            thread.join(5)
