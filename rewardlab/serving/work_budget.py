"""Memory for work that is done at a time: who comes when it is used up waits for a turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class WorkBudget:
    """Up to ``max_bytes`` in use at a time, in the order of asking: large work is not passed over for small work."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._free = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def taken(self, num_bytes: int) -> AsyncIterator[None]:
        """Wait for room, and use it within the context. What is larger than all of it takes all of it."""
        num_bytes = min(num_bytes, self._max_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        self._grant()
        try:
            await turn
            yield
        finally:
            if turn.cancelled() or not turn.done():
                turn.cancel()
                self._waiting = deque(item for item in self._waiting if item[1] is not turn)
            else:
                self._free += num_bytes
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            num_bytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= num_bytes
                turn.set_result(None)
