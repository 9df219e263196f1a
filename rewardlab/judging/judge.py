"""Judges compare pairs. A generative one prompts a sampler, in stated orders, and keeps every vote."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self

from rewardlab.errors import ConfigError
from rewardlab.judging.asking import VoteRequest, votes_by_chunk
from rewardlab.judging.spec import judge_weights_id
from rewardlab.prompts import Template, build_messages
from rewardlab.samplers.base import FieldSampler, RequestGate, Sampler, SamplingParams, StreamingSampler, prompt_seed
from rewardlab.types import (
    BOTH_ORDERS,
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


class ModelJudge(ABC):
    """A judge whose votes are written by a model, here or behind an endpoint, or by several.

    ``spec`` is what named it. ``temperature`` is that of its votes: at 0 it says the same when it is asked the same.
    """

    spec: str
    temperature: float
    engine_args: str = ""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def sees(self) -> bool:
        return True

    @property
    @abstractmethod
    def identity(self) -> dict[str, str | float]:
        """Return all that its answers depend on: what a log of them must agree in to be continued."""

    @property
    @abstractmethod
    def is_batch_invariant(self) -> bool:
        """Return whether the votes on a pair do not depend on the other pairs of the call; such a judge takes several calls at
        a time."""

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields of a request that the model is asked without, for it refuses them or the body of the request says
        so; its own defaults hold there."""
        return frozenset()

    @abstractmethod
    def check(self) -> None:
        """Raise EndpointError if the judge is remote and nothing answers."""

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

    @property
    def is_metered(self) -> bool:
        """Return whether each vote is a request of its own whose tokens are known: only of such a judge a budget is kept."""
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

    def reduce(self, pair_id: str, votes: Sequence[Vote]) -> Judgment:
        """Return what votes of this judge on a pair come to."""
        return reduce_votes(pair_id, votes)


class GenerativeJudge(ModelJudge):
    """A sampler, a template and how to draw. ``spec`` is what named it, by default the sampler's name."""

    def __init__(
        self,
        sampler: Sampler,
        template: Template,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 1024,
        spec: str | None = None,
        request: str = "",
        engine_args: str = "",
        verdict_temperature: float = 1.0,
    ) -> None:
        """``request`` is what else decides its answers (:attr:`rewardlab.samplers.request_options.RequestOptions.identity`).
        ``engine_args`` are the options that its engine was opened with. ``verdict_temperature`` divides the log-odds of its
        verdicts where these are weighed; it has no part in what is sampled."""
        self.sampler, self.template = sampler, template
        self.temperature, self.top_p, self.max_tokens = temperature, top_p, max_tokens
        self.spec, self.request, self.engine_args = spec or sampler.name, request, engine_args
        self.verdict_temperature = verdict_temperature

    @property
    def name(self) -> str:
        return self.spec

    @property
    def verdict_format(self) -> str:
        """Return how its verdicts are read."""
        return self.template.verdict_format

    @property
    def identity(self) -> dict[str, str | float]:
        return {
            "judge": self.spec,
            "weights": judge_weights_id(self.spec),
            "template": self.template.hash,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            **({"request": self.request} if self.request else {}),
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
        return type(self)(
            self.sampler,
            self.template,
            temperature=0.0,
            max_tokens=self.max_tokens,
            spec=self.spec,
            request=self.request,
            engine_args=self.engine_args,
            verdict_temperature=self.verdict_temperature,
        )

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        places = [(n, order) for n, pair_orders in enumerate(orders) for order in pair_orders]
        prompts = [build_messages(pairs[n], order=order, template=self.template) for n, order in places]
        params = SamplingParams(num_votes, self.temperature, self.top_p, self.max_tokens, seed)
        votes: list[list[Vote]] = [[] for _ in pairs]
        for (n, order), completions in zip(places, self.sampler.sample(prompts, params), strict=True):
            votes[n] += [Vote(order, verdict_of(c, self.template.verdict_format), c) for c in completions]
        return [judgment(pair.pair_id, pair_votes) for pair, pair_votes in zip(pairs, votes, strict=True)]

    @property
    def is_streaming(self) -> bool:
        return isinstance(self.sampler, StreamingSampler) and self.sampler.is_streaming

    @property
    def is_metered(self) -> bool:
        return self.is_streaming

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        if not (isinstance(self.sampler, StreamingSampler) and self.is_streaming):
            return super().vote_each(requests, gate)
        return self._vote_each(self.sampler, requests, gate)

    def _vote_each(
        self, sampler: StreamingSampler, requests: Iterable[VoteRequest], gate: RequestGate | None
    ) -> Iterator[list[tuple[int, Vote]]]:
        orders: list[Order] = []

        def prompts() -> Iterator[tuple[tuple[Message, ...], int]]:
            for request, messages in _messages(requests, self.template):
                orders.append(request.order)
                yield messages, prompt_seed(request.seed, messages) + request.draw

        params = SamplingParams(1, self.temperature, self.top_p, self.max_tokens)
        for batch in sampler.sample_each(prompts(), params, gate):
            yield [
                (number, Vote(orders[number], verdict_of(completion, self.template.verdict_format), completion))
                for number, completion in batch
            ]


def _messages(requests: Iterable[VoteRequest], template: Template) -> Iterator[tuple[VoteRequest, tuple[Message, ...]]]:
    """Yield each request with its prompt, which is built once for draws that follow each other."""
    last: tuple[PreferencePair, Order] | None = None
    messages: tuple[Message, ...] = ()
    for request in requests:
        if last is None or last[0] is not request.pair or last[1] is not request.order:
            last, messages = (request.pair, request.order), build_messages(request.pair, order=request.order, template=template)
        yield request, messages
