"""Judges compare pairs. A generative one prompts a sampler, in stated orders, and keeps every vote."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Protocol, Self

from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import judge_config, judge_weights_id
from rewardlab.prompts import Template, build_messages
from rewardlab.samplers.base import FieldSampler, InTurns, RequestGate, Sampler, SamplingParams, StreamingSampler, prompt_seed
from rewardlab.types import (
    BOTH_ORDERS,
    Completion,
    Judgment,
    Message,
    Order,
    PreferencePair,
    Vote,
)
from rewardlab.verdicts.parse import verdict_of
from rewardlab.verdicts.votes import judgment, reduce_votes

ORDER_POLICIES = ("both", "random", "given")


class Judge(Protocol):
    """Compares pairs. ``name`` goes into reports; ``sees`` says whether the images are looked at."""

    @property
    def name(self) -> str: ...

    @property
    def sees(self) -> bool: ...

    @property
    def verdict_format(self) -> str:
        """Return how its answers are read, "" if it writes none."""
        ...

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        """Return the judgments of ``num_votes`` votes on each pair in each of its orders."""
        ...


def draw_orders(policy: str, num_pairs: int, seed: int) -> list[tuple[Order, ...]]:
    """Return the orders each pair is shown in: both, one drawn by ``seed`` and the pair's place, or as given."""
    if policy not in ORDER_POLICIES:
        raise ConfigError(f"unknown order policy {policy!r}; expected one of {', '.join(ORDER_POLICIES)}")
    if policy == "both":
        return [BOTH_ORDERS] * num_pairs
    if policy == "given":
        return [(Order.GIVEN,)] * num_pairs
    return [(random.Random(f"{seed} {n}").choice(BOTH_ORDERS),) for n in range(num_pairs)]


@dataclass(frozen=True)
class VoteRequest:
    """One vote to ask for: draw number ``draw`` of a pair in an order, of those that a call with ``seed`` makes; of a panel
    that of the member number ``voice``.

    ``row`` is the number of the pair, which tells it from others with the same content. ``call_size`` is how many requests its
    member answers in one call, this one included; where fewer of them come, none is asked. It is 1 for a single vote.
    """

    pair: PreferencePair
    order: Order
    draw: int
    seed: int
    row: int
    voice: int = 0
    call_size: int = 1


@dataclass(frozen=True)
class VoteSampling:
    """How votes were sampled; None if it is not known."""

    temperature: float | None = None
    top_p: float | None = None
    stop_error: float | None = None
    max_tokens: int | None = None


class JudgeKind:
    """What a kind of judge says of itself, so that nobody asks for its class. The defaults are those of a judge whose votes are
    counted."""

    name: str
    sees: bool = True  # whether it looks at the images
    is_queried: bool = True  # a model answers: requests may fail, controls tell something, answers have a price
    is_recording: bool = False  # its votes were sampled before
    is_metered: bool = False  # each vote is a request whose tokens are known: only for such a judge a budget is kept
    looks: bool = False  # it may look again at parts of images
    num_turns: int = 1  # the most requests that a vote takes
    has_own_sampling: bool = False  # nobody sets its temperature, and nobody knows it
    accepts_empty_responses: bool = True
    verdict_format: str = ""  # how its answers are read
    template_name: str | None = None
    verdict_temperature: float = 1.0  # divides the log-odds of its verdicts
    decides: ClassVar[str] = ""  # how it decides, unless by the majority of its votes
    default_votes: int = 1  # samples of an order, unless the run says how many
    has_partial_votes: bool = False  # votes are not exchangeable draws: settled early, or of several judges
    sampling: VoteSampling | None = None  # how its votes were sampled; None: as the config says
    rows: Set[int] | None = None  # rows of the data that it can judge; None: all

    @property
    def members(self) -> tuple[ModelJudge, ...]:
        """Return the members of a panel."""
        return ()

    @property
    def identity(self) -> dict[str, str | float]:
        """Return all that its answers depend on: what a log of them must agree in to be continued."""
        return {}

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields of a request that the model is queried without: it refuses them, or the body of the request omits
        them; its own defaults hold then."""
        return frozenset()

    def check(self) -> None:
        """Raise EndpointError if the judge is remote and nothing answers."""

    def reduce(self, pair_id: str, votes: Sequence[Vote]) -> Judgment:
        """Return what votes of this judge on a pair come to."""
        return reduce_votes(pair_id, votes)

    def resolve_orders(self, policy: str, num_votes: int | None) -> str:
        """Return the order policy that ``auto`` stands for. Raise ConfigError for a policy that this kind does not have."""
        if policy == "recorded":
            raise ConfigError(f"orders=recorded is for recordings (--judge replay:FILE), but {self.name} is none; leave it out")
        return "both" if policy == "auto" else policy

    def shown_orders(
        self, policy: str, rows: Sequence[Any], seed: int, num_votes: int | None
    ) -> tuple[list[tuple[Order, ...]], list[str]]:
        """Return the orders of each row under a resolved policy, and notes on them."""
        return draw_orders(policy, len(rows), seed), []


class ModelJudge(JudgeKind, ABC):
    """A judge whose votes are written by a model, here or behind an endpoint, or by several. ``config``: how it is queried."""

    config: JudgeConfig

    @property
    def spec(self) -> str:
        """Return the specification that names it."""
        return self.config.judge

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.spec

    @property
    def temperature(self) -> float:
        """Return the sampling temperature of its votes; at 0 equal queries have equal answers."""
        return self.config.temperature

    @property
    @abstractmethod
    def identity(self) -> dict[str, str | float]: ...

    @property
    @abstractmethod
    def is_batch_invariant(self) -> bool:
        """Return whether the votes on a pair do not depend on the other pairs of the call; such a judge takes several calls at
        a time."""

    @abstractmethod
    def greedy(self) -> Self:
        """Return the same judge at temperature 0. A judge whose temperature is not ours to set is returned as it is."""

    @abstractmethod
    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]: ...

    @property
    def voices(self) -> tuple[ModelJudge, ...]:
        """Return the judges whose votes are counted: itself, or the members of a panel."""
        return (self,)

    @property
    def is_streaming(self) -> bool:
        """Return whether :meth:`vote_each` hands over votes when they are there, before a whole call is answered."""
        return False

    def num_draws(self, num_votes: int) -> int:
        """Return how many votes of an order a call for ``num_votes`` gives."""
        return num_votes

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        """Yield (number of the request, its vote), those in a list that came together: the votes of :meth:`compare_many`.

        ``requests`` are taken as they are sent, in another thread where the judge :attr:`is_streaming`; where not, they are all
        votes of a pair, and those of one seed are one call. What ``gate`` does not let through is left out; raise
        NotImplementedError for one unless the judge :attr:`is_metered`.
        """
        if gate is not None:
            raise NotImplementedError(f"{self.name} keeps no budget")
        return votes_by_chunk(self.voices, enumerate(requests))

    def compare(self, pair: PreferencePair, *, num_votes: int = 1, seed: int = 0) -> Judgment:
        """Return the judgment of one pair in both orders."""
        return self.compare_many([pair], orders=[BOTH_ORDERS], num_votes=num_votes, seed=seed)[0]


def votes_by_chunk(
    voices: Sequence[ModelJudge], requests: Iterable[tuple[int, VoteRequest]]
) -> Iterator[list[tuple[int, Vote]]]:
    """Yield the votes of numbered requests, those of one seed and member by one call of its ``compare_many``. Of each pair and
    member there are all votes; a call of which requests are missing, where they ended early, is left out."""
    for seed, chunk in groupby(requests, key=lambda item: item[1].seed):
        by_voice: dict[int, list[tuple[int, VoteRequest]]] = {}
        for item in chunk:
            by_voice.setdefault(item[1].voice, []).append(item)
        for voice, items in by_voice.items():
            if len(items) < items[0][1].call_size:
                continue  # a part of it would draw what no other run draws
            rows = [list(row) for _, row in groupby(items, key=lambda item: item[1].row)]
            judgments = voices[voice].compare_many(
                [row[0][1].pair for row in rows],
                orders=[tuple(dict.fromkeys(request.order for _, request in row)) for row in rows],
                num_votes=1 + max(request.draw for _, request in items),
                seed=seed,
            )
            yield [
                (number, vote)
                for row, judgment in zip(rows, judgments, strict=True)
                for (number, _), vote in zip(row, judgment.votes, strict=True)
            ]


class GenerativeJudge(ModelJudge):
    """A sampler, a template and how to query."""

    def __init__(
        self,
        sampler: Sampler,
        template: Template,
        config: JudgeConfig | None = None,
        *,
        verdict_temperature: float = 1.0,
        **keys: Any,
    ) -> None:
        """``config``: how it is queried; ``keys``: those of a config, over it. ``verdict_temperature`` divides the log-odds of
        its verdicts if these are weighed; sampling does not depend on it."""
        turns = None if isinstance(sampler, InTurns) else template.turns
        self.sampler, self.template = InTurns(sampler, turns) if turns else sampler, template
        self.config = judge_config(config or JudgeConfig.of(sampler.name), keys)
        self.verdict_temperature = verdict_temperature

    @property
    def verdict_format(self) -> str:  # type: ignore[override]
        return self.template.verdict_format

    @property
    def template_name(self) -> str | None:  # type: ignore[override]
        return self.template.name

    @property
    def looks(self) -> bool:  # type: ignore[override]
        return self.template.looks

    @property
    def num_turns(self) -> int:  # type: ignore[override]
        return self.sampler.num_turns if isinstance(self.sampler, InTurns) else 1

    @property
    def of_one_turn(self) -> Sampler:
        """Return what samples the turns of its judgments, and answers chats."""
        return self.sampler.of_one_turn if isinstance(self.sampler, InTurns) else self.sampler

    @property
    def identity(self) -> dict[str, str | float]:
        request = self.config.request_identity
        return {
            "judge": self.spec,
            "weights": judge_weights_id(self.spec),
            "template": self.template.hash,
            **self.config.sampling,
            **({"request": request} if request else {}),
        }

    @property
    def is_batch_invariant(self) -> bool:
        return self.sampler.is_batch_invariant

    @property
    def left_out(self) -> frozenset[str]:
        return self.sampler.left_out if isinstance(self.sampler, FieldSampler) else frozenset()

    def check(self) -> None:
        self.sampler.check()

    def greedy(self) -> Self:
        config = judge_config(self.config, temperature=0.0, top_p=1.0)
        return type(self)(self.sampler, self.template, config, verdict_temperature=self.verdict_temperature)

    def params(self, num_samples: int, seed: int = 0) -> SamplingParams:
        """Return how its sampler draws ``num_samples`` judgments of a prompt."""
        return SamplingParams(num_samples, **self.config.sampling, seed=seed)

    def messages(self, pair: PreferencePair, order: Order) -> tuple[Message, ...]:
        """Return the prompt about a pair."""
        return build_messages(pair, order=order, template=self.template)

    def vote(self, pair: PreferencePair, order: Order, completion: Completion) -> Vote:
        """Return what an answer says of the pair."""
        return Vote(order, verdict_of(completion, self.template.verdict_format, pair.criteria), completion)

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        places = [(n, order) for n, pair_orders in enumerate(orders) for order in pair_orders]
        prompts = [self.messages(pairs[n], order) for n, order in places]
        params = self.params(num_votes, seed)
        votes: list[list[Vote]] = [[] for _ in pairs]
        for (n, order), completions in zip(places, self.sampler.sample(prompts, params), strict=True):
            votes[n] += [self.vote(pairs[n], order, completion) for completion in completions]
        return [judgment(pair.pair_id, pair_votes) for pair, pair_votes in zip(pairs, votes, strict=True)]

    @property
    def is_streaming(self) -> bool:
        return isinstance(self.sampler, StreamingSampler) and self.sampler.is_streaming

    @property
    def is_metered(self) -> bool:  # type: ignore[override]
        return self.is_streaming

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        if not (isinstance(self.sampler, StreamingSampler) and self.is_streaming):
            return super().vote_each(requests, gate)
        return self._vote_each(self.sampler, requests, gate)

    def _vote_each(
        self, sampler: StreamingSampler, requests: Iterable[VoteRequest], gate: RequestGate | None
    ) -> Iterator[list[tuple[int, Vote]]]:
        sent: list[tuple[PreferencePair, Order]] = []

        def prompts() -> Iterator[tuple[tuple[Message, ...], int]]:
            messages: tuple[Message, ...] = ()
            for request in requests:  # draws of a prompt follow each other: it is built once
                if not sent or sent[-1][0] is not request.pair or sent[-1][1] is not request.order:
                    messages = self.messages(request.pair, request.order)
                sent.append((request.pair, request.order))
                yield messages, prompt_seed(request.seed, messages) + request.draw

        for batch in sampler.sample_each(prompts(), self.params(1), gate):
            yield [(number, self.vote(*sent[number], completion)) for number, completion in batch]
