"""How many requests are made at a time: as many as asked for, fewer while an endpoint says 429 to many of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")
TOO_MANY, FEW = 0.10, 0.05  # shares of refused requests from which on fewer are sent, and up to which more are
LESS, MORE = 0.7, 1.1
LEAST_ANSWERS = 20  # to judge a share by
LONGEST_PAUSE_S = 60.0


class AdaptiveConcurrency:
    """Use as ``async with``. At most ``limit`` are inside, which moves between 1 and ``most``.

    After each window of ``limit`` answers it shrinks to 70 % where more than a tenth were refused, and everybody waits as long
    as the last Retry-After says; it grows by a tenth where no more than a twentieth were. A few refusals among many answers,
    which providers give at any load, only delay the requests they met: halving at each, as TCP does, would stay at
    sqrt(1.5 / share) requests, 9 for a share of 2 %.
    """

    def __init__(self, most: int) -> None:
        self.most, self.limit, self.inside = most, float(most), 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answers = self._refused = 0
        self._paused_until = 0.0

    def record(self, *, refused: bool, wait_s: float = 0.0) -> None:
        """Count an answer, or a refusal with its Retry-After."""
        self._answers += 1
        self._refused += refused
        if self._answers < max(LEAST_ANSWERS, self.limit):
            return
        share, self._answers, self._refused = self._refused / self._answers, 0, 0
        if share > TOO_MANY:
            self.limit = max(1.0, LESS * self.limit)
            wait_s = min(wait_s, LONGEST_PAUSE_S)
            self._paused_until = time.monotonic() + wait_s
            asyncio.get_running_loop().call_later(wait_s + 0.01, self._wake)
        elif share <= FEW:
            self.limit = min(float(self.most), MORE * self.limit + 1)
            self._wake()

    def _room(self) -> bool:
        return self.inside < int(self.limit) and time.monotonic() >= self._paused_until

    def _wake(self) -> None:
        while self._waiting and self._room():
            if not (turn := self._waiting.popleft()).done():
                self.inside += 1
                turn.set_result(None)

    async def __aenter__(self) -> Self:
        if not self._waiting and self._room():
            self.inside += 1
            return self
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had just been let in
                self._leave()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self.inside -= 1
        self._wake()


async def in_window(items: Iterator[T], work: Callable[[T], Awaitable[R]], width: int) -> AsyncGenerator[list[R]]:
    """Yield what ``work`` returns for each item, those in a list that were done together; ``width`` are at work at a time, and
    an item is taken when its work begins. Where the work or the taking of one raises, no other is taken, and what is at work is
    waited for and yielded before. What is at work when the reader leaves is cancelled."""

    async def one(item: T) -> R:
        return await work(item)

    tasks: set[asyncio.Task[R]] = set()
    failure: Exception | None = None  # of taking an item
    try:
        while True:
            try:
                while len(tasks) < width:
                    tasks.add(asyncio.create_task(one(next(items))))
            except StopIteration:
                pass
            except Exception as untaken:
                failure = untaken
            if not tasks:
                if failure is not None:
                    raise failure
                return
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if (failure or any(task.exception() for task in done)) and tasks:  # what was asked for is paid for
                rest, tasks = await asyncio.wait(tasks), set()
                done |= rest[0]
            if results := [task.result() for task in done if task.exception() is None]:
                yield results
            for error in filter(None, (failure, *(task.exception() for task in done))):
                raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def retry_after_s(header: str | None, *, default: float = 0.0) -> float:
    """Return the seconds that a Retry-After header asks for, in seconds or as a date; ``default`` for none or nonsense."""
    if not header:
        return default
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return default
