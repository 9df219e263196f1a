"""Several questions of one request, asked at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(asked: Iterable[Coroutine[Any, Any, T]], *, at_once: int = 256) -> list[T]:
    """The results of all, ``at_once`` of them asked at a time: one large request must not fill the queue by itself.

    When one fails the others are cancelled, so that nothing is judged that nobody will read.
    """
    slots = asyncio.Semaphore(at_once)

    async def one_of(one: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await one

    waiting = list(asked)
    tasks = [asyncio.ensure_future(one_of(one)) for one in waiting]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for one in waiting:
            if inspect.getcoroutinestate(one) == inspect.CORO_CREATED:  # it would complain that nobody awaited it
                one.close()
        raise
