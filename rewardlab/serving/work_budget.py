"""Memory for work that is done at a time: who comes when it is used up waits for a turn."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi.concurrency import run_in_threadpool

T = TypeVar("T")
IsStopped = Callable[[], bool]  # whether nobody waits for the work any more


class WorkBudget:
    """Up to ``max_bytes`` in use at a time, in the order of asking: large work is not passed over for small work."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._free = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def taken(self, num_bytes: int) -> AsyncIterator[Room]:
        """Wait for room, and use it within the context, and longer where a thread of :func:`run_in_thread` still does. What is
        larger than all of it takes all of it."""
        num_bytes = min(num_bytes, self._max_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        self._grant()
        try:
            await turn
        except BaseException:
            if turn.cancelled() or not turn.done():
                turn.cancel()
                self._waiting = deque(item for item in self._waiting if item[1] is not turn)
            else:
                self._free += num_bytes
            self._grant()
            raise
        room = Room(self, num_bytes)
        try:
            yield room
        finally:
            room.leave()

    def give_back(self, num_bytes: int) -> None:
        """Let others have ``num_bytes`` of what was taken."""
        self._free += num_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            num_bytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= num_bytes
                turn.set_result(None)


class Room:
    """What was taken of a budget. It is given back when the last of its users has left: who took it, and the threads."""

    def __init__(self, budget: WorkBudget, num_bytes: int) -> None:
        self._budget, self.num_bytes, self._num_users = budget, num_bytes, 1

    def shrink(self, num_bytes: int) -> None:
        """Keep ``num_bytes`` at most, and give the rest back."""
        rest = max(0, self.num_bytes - num_bytes)
        self.num_bytes -= rest
        self._budget.give_back(rest)

    def enter(self) -> None:
        self._num_users += 1

    def leave(self) -> None:
        self._num_users -= 1
        if not self._num_users:
            self._budget.give_back(self.num_bytes)


async def run_in_thread(work: Callable[[IsStopped], T], *rooms: Room) -> T:
    """Return what ``work`` returns, run in a thread. It can find out whether its caller has gone.

    A thread cannot be cancelled: where its caller is, it runs on. Until it has ended the ``rooms`` are in use, and it counts as
    one of the threads that there may be.
    """
    stopped = threading.Event()

    def leave(task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more
        for room in rooms:
            room.leave()

    for room in rooms:
        room.enter()
    task = asyncio.create_task(run_in_threadpool(_unless_stopped, work, stopped))
    task.add_done_callback(leave)
    try:
        return await asyncio.shield(task)
    finally:
        stopped.set()


def _unless_stopped(work: Callable[[IsStopped], T], stopped: threading.Event) -> T:
    if stopped.is_set():  # the caller went while the work waited for a thread
        raise asyncio.CancelledError
    return work(stopped.is_set)
