"""Frameworks that send one response at a time: those to one prompt wait for each other, and are rewarded as a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rewardlab.serving.errors import AloneError

T = TypeVar("T")
R = TypeVar("R")


class Cohorts(Generic[T, R]):
    """Collects ``size`` members of a key, then asks ``reward`` about all of them once; each caller gets its own.

    A cohort that is not full after ``timeout_s`` is dissolved: every member hears AloneError, nobody waits for a lost
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
        """The reward of ``member`` within its cohort. Raises AloneError, and what ``reward`` raises."""
        loop = asyncio.get_running_loop()
        own: asyncio.Future[R] = loop.create_future()
        cohort = self._open.setdefault(key, [])
        cohort.append((member, own))
        if len(cohort) == 1:
            loop.call_later(self.timeout_s, self._dissolve, key, cohort)
        if len(cohort) == self.size:
            del self._open[key]
            task = loop.create_task(self._settle(cohort))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await own
        except asyncio.CancelledError:  # who hangs up makes room: another try of the same rollout takes its place
            own.cancel()
            if self._open.get(key) is cohort:
                cohort.remove((member, own))
                if not cohort:
                    del self._open[key]
            raise

    async def _settle(self, cohort: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            rewards = await self._reward([member for member, _ in cohort])
        except Exception as error:  # the boundary: every member must hear of it
            for _, own in cohort:
                if not own.done():
                    own.set_exception(error)
            return
        for (_, own), reward in zip(cohort, rewards, strict=True):
            if not own.done():
                own.set_result(reward)

    def _dissolve(self, key: str, cohort: list[tuple[T, asyncio.Future[R]]]) -> None:
        if self._open.get(key) is not cohort:
            return
        del self._open[key]
        self.num_dissolved += bool(cohort)
        for _, own in cohort:
            if not own.done():
                own.set_exception(
                    AloneError(f"only {len(cohort)} of {self.size} responses to this prompt came within {self.timeout_s:g} s")
                )
