"""A thread to call a blocking engine in. It is a daemon: a call that hangs does not keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class EngineThread:
    """Run calls one after another, until ``close``."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return a future of the running loop with what ``call`` returns or raises."""
        future = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """End the thread when it is done with what it has."""
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # the boundary: it is the caller's
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del item, call, future, result, error  # what was judged, and by whom, is not kept until the next call


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
