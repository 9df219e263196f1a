"""Frameworks that send one response at a time: those to one prompt wait for each other, and are rewarded as a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rewardlab.serving.admission import separate_share
from rewardlab.serving.errors import EngineFailedError, GroupTimeoutError
from rewardlab.serving.request_context import TENANT

T = TypeVar("T")
R = TypeVar("R")


class Group(Generic[T, R]):
    """Members of a key, and who waits for the reward of each."""

    def __init__(self) -> None:
        self.members: list[tuple[T, asyncio.Future[R]]] = []
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        for _, future in self.members:
            if not future.done():
                future.set_exception(error)

    def leave(self, future: asyncio.Future[R]) -> None:
        """Forget a member of an open group; of one that is being rewarded it is kept, for the others are compared with it.
        Where the last one leaves, the rewarding ends."""
        future.cancel()
        if self.task is None:
            self.members = [(member, other) for member, other in self.members if other is not future]
        elif all(other.done() for _, other in self.members):
            self.task.cancel()


class GroupBuffer(Generic[T, R]):
    """Collect ``size`` members of a tenant's key, then call ``reward`` on all of them once; each caller gets its own reward.

    A group that is not full after ``timeout_s`` is dissolved: every member gets GroupTimeoutError, nobody waits for a lost
    rollout.
    """

    def __init__(self, reward: Callable[[list[T]], Awaitable[list[R]]], *, size: int, timeout_s: float) -> None:
        self._reward, self.size, self.timeout_s = reward, size, timeout_s
        self._open: dict[tuple[str, str], Group[T, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.num_dissolved = 0

    @property
    def num_waiting(self) -> int:
        return sum(len(group.members) for group in self._open.values())

    def num_waiting_of(self, tenant: str) -> int:
        return sum(len(group.members) for (owner, _), group in self._open.items() if owner == tenant)

    async def join(self, key: str, member: T) -> R:
        """Return the reward of ``member`` within its group. Raises GroupTimeoutError, EngineFailedError if the server stops,
        and what ``reward`` raises."""
        if self._closed:
            raise _stopping()
        loop, place = asyncio.get_running_loop(), (TENANT.get(), key)
        future: asyncio.Future[R] = loop.create_future()
        if (group := self._open.get(place)) is None:
            group = self._open[place] = Group()
            group.timer = loop.call_later(self.timeout_s, self._dissolve, place, group)
        group.members.append((member, future))
        if len(group.members) == self.size:
            del self._open[place]
            if group.timer:
                group.timer.cancel()
            group.task = loop.create_task(self._settle(group))
            self._tasks.add(group.task)
            group.task.add_done_callback(self._tasks.discard)
        try:
            return await future
        except asyncio.CancelledError:  # who hangs up makes room: another try of the same rollout takes its place
            group.leave(future)
            if self._open.get(place) is group and not group.members:
                del self._open[place]
            raise

    def close(self) -> None:
        """Let nobody wait whose group cannot fill any more."""
        self._closed = True
        for group in self._open.values():
            group.fail(_stopping())
        self._open.clear()

    async def _settle(self, group: Group[T, R]) -> None:
        try:
            with separate_share():  # the task inherits the last member's, which is released where that one hangs up
                rewards = await self._reward([member for member, _ in group.members])
            rewarded = list(zip(group.members, rewards, strict=True))  # as many as there are members, or nobody has one
        except Exception as error:  # the boundary: every member gets it
            group.fail(error)
            return
        for (_, future), reward in rewarded:
            if not future.done():
                future.set_result(reward)

    def _dissolve(self, place: tuple[str, str], group: Group[T, R]) -> None:
        if self._open.get(place) is not group:
            return
        del self._open[place]
        self.num_dissolved += 1
        group.fail(
            GroupTimeoutError(
                f"only {len(group.members)} of {self.size} responses to this prompt came within {self.timeout_s:g} s"
            )
        )


def _stopping() -> EngineFailedError:
    return EngineFailedError("the server is shutting down before the group is full; send its responses again")
