"""Judges: whatever compares pairs. A generative one asks a sampler, in stated orders, and keeps every vote."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rewardlab.checkpoints import template_for
from rewardlab.errors import ConfigError
from rewardlab.prompts import Template, build_messages, load_template
from rewardlab.samplers.base import Sampler, SamplingParams
from rewardlab.samplers.self_verifying import SelfVerifying
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts import verdict_of
from rewardlab.votes import judgment

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
        """``num_votes`` votes on each pair in each of its orders."""
        ...


def draw_orders(policy: str, num_pairs: int, seed: int) -> list[tuple[Order, ...]]:
    """The orders each pair is shown in: both, one drawn by ``seed`` and the pair's place, or as given."""
    if policy not in ORDER_POLICIES:
        raise ConfigError(f"unknown order policy {policy!r}; expected one of {', '.join(ORDER_POLICIES)}")
    if policy == "both":
        return [BOTH_ORDERS] * num_pairs
    if policy == "given":
        return [(Order.GIVEN,)] * num_pairs
    return [(random.Random(f"{seed} {n}").choice(BOTH_ORDERS),) for n in range(num_pairs)]


class GenerativeJudge:
    """A sampler, a template and how to draw."""

    def __init__(
        self,
        sampler: Sampler,
        template: Template,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 1024,
    ) -> None:
        self.sampler, self.template = sampler, template
        self.temperature, self.top_p, self.max_tokens = temperature, top_p, max_tokens

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def sees(self) -> bool:
        return True

    def check(self) -> None:
        """Raise EndpointError where the judge is remote and nothing answers."""
        self.sampler.check()

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        shown = [(n, order) for n, asked in enumerate(orders) for order in asked]
        prompts = [build_messages(pairs[n], order=order, template=self.template) for n, order in shown]
        params = SamplingParams(num_votes, self.temperature, self.top_p, self.max_tokens, seed)
        votes: list[list[Vote]] = [[] for _ in pairs]
        for (n, order), completions in zip(shown, self.sampler.sample(prompts, params), strict=True):
            votes[n] += [Vote(order, verdict_of(c, self.template.convention), c) for c in completions]
        return [judgment(pair.pair_id, cast) for pair, cast in zip(pairs, votes, strict=True)]

    def compare(self, pair: PreferencePair, *, num_votes: int = 1, seed: int = 0) -> Judgment:
        """Judge one pair in both orders."""
        return self.compare_many([pair], orders=[BOTH_ORDERS], num_votes=num_votes, seed=seed)[0]


def _open_hf(target: str, asked: str | None, batch_size: int) -> tuple[Sampler, Template]:
    from rewardlab.samplers.hf import HFSampler

    template = template_for(Path(target), asked) if Path(target).exists() else load_template(asked or "r1_reward")
    return HFSampler.load(target, batch_size=batch_size), template


def _open_openai(target: str, asked: str | None, api_key: str) -> tuple[Sampler, Template]:
    from rewardlab.samplers.openai_api import OpenAISampler

    model, at, url = target.partition("@")
    if not (model and at and url.startswith(("http://", "https://"))):
        raise ConfigError(f"openai:{target}: expected openai:MODEL@URL, for example openai:gpt-4o@https://host/v1")
    return OpenAISampler(url, model, api_key=api_key), load_template(asked or "r1_reward")


def open_judge(
    spec: str,
    *,
    template: str | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 1024,
    batch_size: int = 64,
    api_key: str = "none",
) -> GenerativeJudge:
    """The judge a SPEC names: ``hf:PATH`` (folder or hub id) or ``openai:MODEL@URL``; ``verify:`` before it, and it verifies
    its own judgments. Raises ConfigError, CheckpointError.
    """
    bare = spec.removeprefix("verify:")
    kind, colon, target = bare.partition(":")
    openers: dict[str, Callable[[], tuple[Sampler, Template]]] = {
        "hf": lambda: _open_hf(target, template, batch_size),
        "openai": lambda: _open_openai(target, template, api_key),
    }
    if kind not in openers or not colon or not target:
        raise ConfigError(f"unknown judge {spec!r}; expected hf:PATH or openai:MODEL@URL, or verify: and one of them")
    sampler, chosen = openers[kind]()
    if bare != spec:
        sampler = SelfVerifying(sampler)
    return GenerativeJudge(sampler, chosen, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
