"""A panel of judges: each is asked in both orders, and has one voice in what they come to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import ModelJudge, VoteRequest, votes_by_chunk
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_config
from rewardlab.samplers.base import OPENAI, RequestGate
from rewardlab.types import Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.panel import panel_judgment

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


class PanelJudge(ModelJudge):
    """Several judges as one (:mod:`rewardlab.verdicts.panel`); its votes are those of all members, each with the member's name.

    Members that take several calls at a time are asked at the same time, those that compute here one after the other. Raise
    ConfigError without members, and where one is named twice: it would have two voices.
    """

    decides = "by its members"
    has_partial_votes = True

    def __init__(self, members: Sequence[ModelJudge], *, by_log_odds: bool = False, config: JudgeConfig | None = None) -> None:
        names = [member.spec for member in members]
        if not names:
            raise ConfigError("a panel needs members; expected panel:A,B,C")
        keys = [_one_name(name) for name in names]
        if twice := [name for n, name in enumerate(names) if keys[n] in keys[:n]]:
            raise ConfigError(f"{twice[0]!r} is named twice in the panel; name each member once")
        self._members, self.by_log_odds = tuple(members), by_log_odds
        self.config = config or JudgeConfig.of(f"{'pool' if by_log_odds else 'panel'}:{';'.join(names)};")

    @property
    def members(self) -> tuple[ModelJudge, ...]:
        return self._members

    @property
    def temperature(self) -> float:
        return max(member.temperature for member in self.members)

    @property
    def identity(self) -> dict[str, str | float]:
        parts = [member.identity for member in self.members]
        names = sorted({name for part in parts for name in part})
        return {**{name: " | ".join(str(part.get(name, "")) for part in parts) for name in names}, "judge": self.spec}

    @property
    def num_turns(self) -> int:  # type: ignore[override]
        return sum(member.num_turns for member in self.members)

    @property
    def is_batch_invariant(self) -> bool:
        return all(member.is_batch_invariant for member in self.members)

    @property
    def left_out(self) -> frozenset[str]:
        return frozenset().union(*(member.left_out for member in self.members))

    @property
    def voices(self) -> tuple[ModelJudge, ...]:
        return self.members

    @property
    def is_streaming(self) -> bool:
        return any(member.is_streaming for member in self.members)

    def check(self) -> None:
        for member in self.members:
            member.check()

    def greedy(self) -> Self:
        members = [member.greedy() for member in self.members]
        return type(self)(members, by_log_odds=self.by_log_odds, config=judge_config(self.config, temperature=0.0))

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        def ask(member: ModelJudge) -> list[Judgment]:
            return member.compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)

        with ThreadPoolExecutor(len(self.members), thread_name_prefix="panel") as pool:
            remote = {n: pool.submit(partial(ask, m)) for n, m in enumerate(self.members) if m.is_batch_invariant}
            local = {n: ask(member) for n, member in enumerate(self.members) if n not in remote}
            judged = [local[n] if n in local else remote[n].result() for n in range(len(self.members))]
        return [
            self.reduce(
                pair.pair_id,
                [
                    replace(vote, member=member.spec)
                    for member, judgments in zip(self.members, judged, strict=True)
                    for vote in judgments[n].votes
                ],
            )
            for n, pair in enumerate(pairs)
        ]

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        return super().vote_each(requests, gate) if gate is not None else self._vote_each(requests)

    def _vote_each(self, requests: Iterable[VoteRequest]) -> Iterator[list[tuple[int, Vote]]]:
        local = {n for n, member in enumerate(self.members) if not member.is_streaming}
        groups = [*({n} for n in range(len(self.members)) if n not in local), *([local] if local else [])]
        with SharedRequests(requests, groups) as shared:
            sources = [self._votes_of(group, shared.of(number)) for number, group in enumerate(groups)]
            for batch in as_they_come(sources, shared.end):
                yield [(number, replace(vote, member=self.members[voice].spec)) for number, voice, vote in batch]

    def _votes_of(self, group: set[int], requests: Iterator[tuple[int, VoteRequest]]) -> Iterator[list[tuple[int, int, Vote]]]:
        """Yield (number, member, vote) of the requests to a streaming member, or to all that compute here."""
        taken: list[tuple[int, int]] = []  # (number of the panel's request, member)

        def of_group() -> Iterator[VoteRequest]:
            for number, request in requests:
                taken.append((number, request.voice))
                yield request

        [first, *others] = group
        if others or not self.members[first].is_streaming:
            batches = votes_by_chunk(self.members, enumerate(of_group()))
        else:
            batches = self.members[first].vote_each(replace(request, voice=0) for request in of_group())
        for batch in batches:
            yield [(*taken[number], vote) for number, vote in batch]

    def reduce(self, pair_id: str, votes: Sequence[Vote]) -> Judgment:
        return panel_judgment(pair_id, votes, by_log_odds=self.by_log_odds)


def _one_name(spec: str) -> str:
    """Return the same text for every spelling of a specification; what is none, as the name of a sampler, stays as it is."""
    try:
        parsed = JudgeSpec.parse(spec, *WITHOUT_SAMPLER)
    except ConfigError:
        return spec
    if parsed.checkpoint is not None and parsed.checkpoint.exists():
        return str(replace(parsed, target=str(parsed.checkpoint.resolve())))
    return str(replace(parsed, target=parsed.target.rstrip("/")) if parsed.engine == OPENAI else parsed)
