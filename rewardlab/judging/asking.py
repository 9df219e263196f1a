"""Votes asked for as a judge gives them: which there are of a pair, and those of them that are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rewardlab.judging.judge import ModelJudge, VoteRequest
from rewardlab.samplers.base import RequestGate
from rewardlab.types import Order, PreferencePair, Vote


@dataclass(frozen=True)
class PairRequest:
    """All votes on a pair: in each of the ``orders``, of a call with ``seed``. Pairs of one seed that follow each other are
    asked in one call, where a judge's draws depend on what else is in it."""

    pair: PreferencePair
    orders: tuple[Order, ...]
    seed: int


class VoteBatch(NamedTuple):
    """Votes that came together, each with the number of its pair and its place (:func:`vote_places`). ``num_drawn`` is how many
    somebody was asked for: those that were answered before and had to be drawn again among them, those of a cache not."""

    votes: list[tuple[int, int, Vote]]
    num_drawn: int


def vote_places(judge: ModelJudge, orders: Sequence[Order], num_votes: int) -> list[tuple[int, Order, int]]:
    """Return (member, order, draw) of each vote on a pair, in the order that the judge's ``compare_many`` gives them in."""
    return [
        (number, order, draw)
        for number, voice in enumerate(judge.voices)
        for order in orders
        for draw in range(voice.num_draws(num_votes))
    ]


def ask_missing(
    judge: ModelJudge,
    pairs: Sequence[PairRequest],
    answered: Sequence[Collection[int]],
    num_votes: int,
    gate: RequestGate | None = None,
) -> Iterator[VoteBatch]:
    """Yield all votes that ``answered`` lacks, as they come; what ``gate`` does not let through is left out.

    A judge that gives no single votes is asked for all of a pair again where one is missing, and for its whole chunk where
    draws depend on what else is asked for; answered votes are not yielded again.
    """
    requested = list[tuple[int, int]]()
    is_single = [voice.is_streaming for voice in judge.voices]
    places = {pair.orders: vote_places(judge, pair.orders, num_votes) for pair in pairs}
    lacking = {
        _unit(n, pair, judge, voice)
        for n, pair in enumerate(pairs)
        for place, (voice, _, _) in enumerate(places[pair.orders])
        if not is_single[voice] and place not in answered[n]
    }
    calls = [number for number, (_, run) in enumerate(groupby(pairs, key=lambda pair: pair.seed)) for _ in run]
    call_sizes = Counter(
        (calls[n], voice)
        for n, pair in enumerate(pairs)
        for voice, _, _ in places[pair.orders]
        if not is_single[voice] and _unit(n, pair, judge, voice) in lacking
    )

    def requests() -> Iterator[VoteRequest]:
        for n, pair in enumerate(pairs):
            for place, (voice, order, draw) in enumerate(places[pair.orders]):
                if place not in answered[n] if is_single[voice] else _unit(n, pair, judge, voice) in lacking:
                    requested.append((n, place))
                    size = 1 if is_single[voice] else call_sizes[calls[n], voice]
                    yield VoteRequest(pair.pair, order, draw, pair.seed, n, voice, size)

    for batch in judge.vote_each(requests(), gate):
        votes = [(*requested[number], vote) for number, vote in batch]
        num_drawn = sum(not vote.completion.from_cache for _, _, vote in votes)
        yield VoteBatch([(n, place, vote) for n, place, vote in votes if place not in answered[n]], num_drawn)


def _unit(number: int, pair: PairRequest, judge: ModelJudge, voice: int) -> tuple[int, int]:
    """Return what of a member that gives no single votes is asked together: a pair, or all of a seed."""
    return (number if judge.voices[voice].is_batch_invariant else pair.seed), voice
