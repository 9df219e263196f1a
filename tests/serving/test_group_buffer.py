"""Groups of responses that come one at a time: full, too late, abandoned, failed, and at the end of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rewardlab.serving.errors import EngineFailedError, GroupTimeoutError
from rewardlab.serving.group_buffer import Group, GroupBuffer
from rewardlab.serving.request_context import TENANT
from tests.support.virtual_time import run_virtually

Buffer = GroupBuffer[int, float]


async def halves(members: list[int]) -> list[float]:
    return [member / 2 for member in members]


def buffer_of(
    size: int = 2, timeout_s: float = 60.0, reward: Callable[[list[int]], Awaitable[list[float]]] = halves
) -> GroupBuffer[int, float]:
    return GroupBuffer(reward, size=size, timeout_s=timeout_s)


def joined(buffer: Buffer, key: str, *members: int) -> list[asyncio.Task[float]]:
    return [asyncio.create_task(buffer.join(key, member)) for member in members]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def outcomes(*tasks: asyncio.Task[float]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
def test_groups_that_wait() -> None:
    """Members of a key wait for each other and get their own reward; one that stays short is dissolved, in time."""

    async def main() -> None:
        asked: list[list[int]] = []

        async def reward(members: list[int]) -> list[float]:
            asked.append(members)
            return [float(member) for member in members]

        buffer = buffer_of(3, 0.2, reward)
        full = joined(buffer, "a", 1, 2, 3)
        begun = time.monotonic()
        with pytest.raises(GroupTimeoutError, match=r"only 1 of 3 responses to this prompt came within 0\.2 s"):
            await buffer.join("b", 4)
        assert time.monotonic() - begun < 5
        assert await asyncio.gather(*full) == [1, 2, 3]
        gone = asyncio.create_task(buffer.join("c", 5))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert await asyncio.gather(*joined(buffer, "c", 6, 7, 8)) == [6, 7, 8]
        assert asked == [[1, 2, 3], [6, 7, 8]]
        assert buffer.num_dissolved == 1
        await outcomes(*joined(buffer, "d", 1, 2))
        assert (buffer.num_dissolved, buffer.num_waiting) == (2, 0)

    asyncio.run(main())


def test_the_timer_of_a_full_group_ends_no_later_one() -> None:
    async def main() -> list[float]:
        buffer = buffer_of(2, 0.6)
        assert await asyncio.gather(*joined(buffer, "key", 2, 4)) == [1, 2]
        await asyncio.sleep(0.4)
        third = asyncio.create_task(buffer.join("key", 6))
        await asyncio.sleep(0.4)  # the timer of the first two has rung
        return await asyncio.gather(third, buffer.join("key", 8))

    assert run_virtually(main()) == [3, 4]


def test_a_tenant_has_groups_of_its_own() -> None:
    async def main() -> None:
        buffer = buffer_of()

        async def join(tenant: str, member: int) -> float:
            TENANT.set(tenant)
            return await buffer.join("key", member)

        tasks = [asyncio.create_task(join(tenant, n)) for tenant, n in (("anna", 1), ("ben", 2))]
        await settle()
        assert (buffer.num_waiting, buffer.num_waiting_of("anna"), buffer.num_waiting_of("nobody")) == (2, 1, 0)
        tasks.append(asyncio.create_task(join("anna", 3)))
        await settle()
        assert ([task.done() for task in tasks], buffer.num_waiting_of("ben")) == ([True, False, True], 1)
        tasks[1].cancel()
        assert (await outcomes(*tasks))[::2] == [0.5, 1.5]

    asyncio.run(main())


def test_who_hangs_up_makes_room() -> None:
    """Of an open group a member is forgotten, and the others wait on; the last one takes the group along."""

    async def main() -> None:
        buffer = buffer_of(3)
        first, second = joined(buffer, "a", 2, 4)
        await settle()
        first.cancel()
        await settle()
        assert buffer.num_waiting == 1
        assert await asyncio.gather(second, *joined(buffer, "a", 6, 8)) == [2, 3, 4]
        [alone] = joined(buffer, "a", 1)
        await settle()
        alone.cancel()
        await settle()
        assert (buffer.num_waiting, buffer._open) == (0, {})

    asyncio.run(main())


def test_rewarding_ends_with_the_last_member() -> None:
    """While one is left it goes on: the others are compared with those who hung up."""

    async def main() -> None:
        ended = asyncio.Event()

        async def reward(members: list[int]) -> list[float]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return []

        buffer = buffer_of(2, reward=reward)
        members = joined(buffer, "a", 0, 1)
        await asyncio.sleep(0.01)
        members[0].cancel()
        await asyncio.sleep(0.01)
        assert not ended.is_set()
        assert len(buffer._tasks) == 1  # kept from the garbage collector
        members[1].cancel()
        await asyncio.wait_for(ended.wait(), 5)
        await settle()
        assert not buffer._tasks

    asyncio.run(main())


def test_a_member_that_is_gone_does_not_keep_the_others() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def reward(members: list[int]) -> list[float]:
            await gate.wait()
            return await halves(members)

        buffer = buffer_of(3, reward=reward)
        members = joined(buffer, "a", 2, 4, 6)
        await settle()
        members[1].cancel()
        gate.set()
        gone, kept = (await outcomes(*members))[1], [await members[0], await members[2]]
        assert isinstance(gone, asyncio.CancelledError)
        assert kept == [1, 3]

    asyncio.run(main())


@pytest.mark.parametrize("rewards", [[1.0], [1.0, 2.0, 3.0], ValueError("no")])
def test_a_failure_is_every_members(rewards: Any) -> None:
    """So are rewards that are too few or too many: nobody has one that may be another's, nobody waits for ever."""

    async def reward(members: list[int]) -> list[float]:
        if isinstance(rewards, Exception):
            raise rewards
        return rewards

    async def main() -> list[Any]:
        return await asyncio.wait_for(outcomes(*joined(buffer_of(2, reward=reward), "a", 1, 2)), 5)

    assert [type(outcome) for outcome in asyncio.run(main())] == [ValueError, ValueError]


def test_a_server_that_stops() -> None:
    """Who waits for a group and who comes later is sent elsewhere; a full group is rewarded."""

    async def main() -> None:
        buffer = buffer_of()
        full, short = joined(buffer, "a", 2, 4), joined(buffer, "b", 6)
        await asyncio.sleep(0)
        buffer.close()
        later = joined(buffer, "b", 8)
        assert await asyncio.gather(*full) == [1, 2]
        for task in (*short, *later):
            with pytest.raises(EngineFailedError) as caught:
                await task
            assert str(caught.value) == "the server is shutting down before the group is full; send its responses again"
        assert buffer.num_waiting == 0

    asyncio.run(main())


def test_a_group_fails_those_who_still_wait() -> None:
    async def main() -> None:
        group: Group[int, float] = Group()
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
        group.members = [(1, first), (2, second)]
        first.set_result(1.0)
        group.fail(ValueError("late"))
        assert first.result() == 1.0
        assert str(second.exception()) == "late"

    asyncio.run(main())
