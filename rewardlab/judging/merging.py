"""Several members of a panel asked at the same time: requests dealt out to them, and their answers as they come."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from rewardlab.judging.asking import VoteRequest

T = TypeVar("T")
END_S = 5.0  # how long the end of a source is waited for; an answer that takes longer ends it when it comes


class SharedRequests:
    """Requests that are dealt out to groups of members, each in the order they come in; none is dealt out after the end of the
    ``with``, not even the rest of a call (:class:`VoteRequest` tells its size). ``groups`` are numbers of members. Usable
    from several threads."""

    def __init__(self, requests: Iterable[VoteRequest], groups: Sequence[Collection[int]]) -> None:
        self._requests = enumerate(requests)
        self._group_of = {voice: number for number, group in enumerate(groups) for voice in group}
        self._waiting: list[deque[tuple[int, VoteRequest]]] = [deque() for _ in groups]
        self._lock, self._has_ended = threading.Lock(), False

    def of(self, group: int) -> Iterator[tuple[int, VoteRequest]]:
        """Yield (number, request) of those to a group."""
        while (item := self._next(group)) is not None:
            yield item

    def _next(self, group: int) -> tuple[int, VoteRequest] | None:
        with self._lock:
            while not self._has_ended and not self._waiting[group]:
                item = next(self._requests, None)
                if item is None:
                    return None
                self._waiting[self._group_of[item[1].voice]].append(item)
            return None if self._has_ended else self._waiting[group].popleft()

    def __enter__(self) -> Self:
        return self

    def end(self) -> None:
        """Deal out no more."""
        self._has_ended = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


def as_they_come(sources: Sequence[Iterator[T]], end: Callable[[], None]) -> Iterator[T]:
    """Yield the items of all sources, each of which is iterated in a thread of its own; a single one is iterated here.

    Where one raises, ``end`` is called, which should end the others, and their items are yielded before the error is raised.
    Where the reader leaves, each source ends at its next item.
    """
    if len(sources) == 1:
        yield from sources[0]
        return
    items: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    is_over = threading.Event()

    def drain(source: Iterator[T]) -> None:
        try:
            for item in source:
                items.put((item,))
                if is_over.is_set():
                    break
            items.put(None)
        except BaseException as error:  # raised again by the reader
            items.put(error)

    threads = [threading.Thread(target=drain, args=(source,), name="panel", daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    errors: list[BaseException] = []
    try:
        left = len(sources)
        while left:
            item = items.get()
            if isinstance(item, tuple):
                yield item[0]
                continue
            left -= 1
            if item is not None:
                errors.append(item)
                end()
        for error in errors:
            raise error
    finally:
        is_over.set()
        for thread in threads:
            thread.join(END_S)
