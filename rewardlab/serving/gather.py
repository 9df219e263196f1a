"""Concurrent calls for one request, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_bounded(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], *, limit: int = 256) -> list[T]:
    """Return the results of all calls, ``limit`` of them at a time: one large request must not fill the queue by itself.

    When one fails the others are cancelled, so that nothing is judged that nobody will read; its exception is raised.
    """
    slots = asyncio.Semaphore(limit)

    async def run(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with slots:
            return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
