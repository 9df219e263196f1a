"""A panel of judges: each is asked in both orders, and has one voice in what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Self

from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import ConfigError
from rewardlab.judging.asking import VoteRequest, votes_by_chunk
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.merging import SharedRequests, as_they_come
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_config
from rewardlab.samplers.base import OPENAI, RequestGate
from rewardlab.types import Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.panel import panel_judgment


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
            raise ConfigError("a panel needs a member; expected panel:A,B,C")
        keys = [_one_name(name) for name in names]
        if twice := [name for n, name in enumerate(names) if keys[n] in keys[:n]]:
            raise ConfigError(f"{twice[0]!r} is named twice in the panel; every member has one voice")
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
