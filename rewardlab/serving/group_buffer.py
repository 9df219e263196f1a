"""Frameworks that send one response at a time: those to one prompt wait for each other, and are rewarded as a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rewardlab.serving.errors import GroupTimeoutError

T = TypeVar("T")
R = TypeVar("R")


class GroupBuffer(Generic[T, R]):
    """Collect ``size`` members of a key, then call ``reward`` on all of them once; each caller gets its own reward.

    A group that is not full after ``timeout_s`` is dissolved: every member gets GroupTimeoutError, nobody waits for a lost
    rollout.
    """

    def __init__(self, reward: Callable[[list[T]], Awaitable[list[R]]], *, size: int, timeout_s: float) -> None:
        self._reward, self.size, self.timeout_s = reward, size, timeout_s
        self._open: dict[str, list[tuple[T, asyncio.Future[R]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_dissolved = 0

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._open.values()))

    async def join(self, key: str, member: T) -> R:
        """Return the reward of ``member`` within its group. Raises GroupTimeoutError, and what ``reward`` raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        group = self._open.setdefault(key, [])
        group.append((member, future))
        if len(group) == 1:
            loop.call_later(self.timeout_s, self._dissolve, key, group)
        if len(group) == self.size:
            del self._open[key]
            task = loop.create_task(self._settle(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await future
        except asyncio.CancelledError:  # who hangs up makes room: another try of the same rollout takes its place
            future.cancel()
            if self._open.get(key) is group:
                group.remove((member, future))
                if not group:
                    del self._open[key]
            raise

    async def _settle(self, group: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            rewards = await self._reward([member for member, _ in group])
        except Exception as error:  # the boundary: every member gets it
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), reward in zip(group, rewards, strict=True):
            if not future.done():
                future.set_result(reward)

    def _dissolve(self, key: str, group: list[tuple[T, asyncio.Future[R]]]) -> None:
        if self._open.get(key) is not group:
            return
        del self._open[key]
        self.num_dissolved += bool(group)
        for _, future in group:
            if not future.done():
                future.set_exception(
                    GroupTimeoutError(
                        f"only {len(group)} of {self.size} responses to this prompt came within {self.timeout_s:g} s"
                    )
                )
