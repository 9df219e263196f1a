"""Judges: whatever compares pairs. A generative one asks a sampler, in stated orders, and keeps every vote."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rewardlab.checkpoints import template_for, weights_id
from rewardlab.errors import ConfigError
from rewardlab.prompts import Template, build_messages, load_template
from rewardlab.samplers.base import Sampler, SamplingParams
from rewardlab.samplers.self_verifying import SelfVerifying
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Message,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.early_stopping import votes_settled
from rewardlab.verdicts.parse import until_verdict, verdict_of
from rewardlab.verdicts.votes import judgment, judgment_by_probability

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
        self.spec = sampler.name  # how it was asked for; see open_judge

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def sees(self) -> bool:
        return True

    @property
    def verdict_format(self) -> str:
        """How its verdicts are read."""
        return self.template.verdict_format

    @property
    def identity(self) -> dict[str, Any]:
        """All that its answers depend on: what a log of them must agree in to be continued."""
        return {
            "judge": self.spec,
            "weights": weights_id(self.spec),
            "template": self.template.hash,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
        }

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
            votes[n] += [Vote(order, verdict_of(c, self.template.verdict_format), c) for c in completions]
        return [judgment(pair.pair_id, cast) for pair, cast in zip(pairs, votes, strict=True)]

    def compare(self, pair: PreferencePair, *, num_votes: int = 1, seed: int = 0) -> Judgment:
        """Judge one pair in both orders."""
        return self.compare_many([pair], orders=[BOTH_ORDERS], num_votes=num_votes, seed=seed)[0]


def compare_until_settled(
    judge: Judge, pairs: Sequence[PreferencePair], *, max_votes: int, error: float, seed: int
) -> list[Judgment]:
    """Ask both orders in turns, one vote each, until the majority of ``max_votes`` of each is settled but for ``error``.

    Every round asks the pairs that are left, together. See :mod:`rewardlab.verdicts.early_stopping`.
    """
    votes: list[list[Vote]] = [[] for _ in pairs]
    left = list(range(len(pairs)))
    for turn in range(max_votes):
        asked = judge.compare_many([pairs[n] for n in left], orders=[BOTH_ORDERS] * len(left), num_votes=1, seed=seed + turn)
        for n, judged in zip(left, asked, strict=True):
            votes[n] += judged.votes
        left = [n for n in left if not votes_settled(votes[n], 2 * (max_votes - turn - 1), error)]
        if not left:
            break
    return [judgment(pair.pair_id, cast) for pair, cast in zip(pairs, votes, strict=True)]


class GivesProbabilities(Sampler, Protocol):
    """A sampler that can also say how likely either verdict is, where the verdict of an answer stands."""

    def verdict_margins(self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]) -> Any:
        """(log-odds of the response shown first, probability of a verdict at all), one of each per prompt."""
        ...


class ProbabilityJudge(GenerativeJudge):
    """Weighs the probability of verdicts instead of counting them (Pairwise-RL, arXiv 2504.04950).

    Where the template asks for reasoning, ``num_votes`` rationales are sampled and the probability is read after each; where it
    asks for the verdict alone there is nothing to sample and one vote per order. A vote names the likelier response;
    ``share_0`` is the probability of response 0. An answer without a verdict, and a model about to write something else than
    one, is an invalid vote; where an order has no valid vote there is neither probability nor outcome.
    """

    sampler: GivesProbabilities

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        if self.template.verdict_format == "bare":
            votes = [[Vote(order, _UNREAD, _NOTHING_WRITTEN) for order in asked] for asked in orders]
        else:
            sampled = super().compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
            votes = [list(judged.votes) for judged in sampled]
        beginnings = {
            (n, k): beginning
            for n, cast in enumerate(votes)
            for k, vote in enumerate(cast)
            if vote.completion.finish is FinishReason.STOP
            and (beginning := until_verdict(vote.completion.text, self.template.verdict_format)) is not None
        }
        prompts = [build_messages(pairs[n], order=votes[n][k].order, template=self.template) for n, k in beginnings]
        margins, coverages = self.sampler.verdict_margins(prompts, list(beginnings.values()))
        for (n, k), margin, coverage in zip(beginnings, margins.tolist(), coverages.tolist(), strict=True):
            verdict = likelier(margin, coverage)
            kept = margin if verdict.status in (VerdictStatus.OK, VerdictStatus.TIE) else None
            votes[n][k] = replace(votes[n][k], verdict=verdict, margin=kept)
        return [judgment_by_probability(pair.pair_id, cast) for pair, cast in zip(pairs, votes, strict=True)]


def probability_judge_of(judge: GenerativeJudge) -> ProbabilityJudge | None:
    """The same judge weighing probabilities; None where its sampler or its format has none to tell."""
    if isinstance(judge, ProbabilityJudge):
        return judge
    if not hasattr(judge.sampler, "verdict_margins") or judge.verdict_format not in READ_BY_PROBABILITY:
        return None
    options = {"temperature": judge.temperature, "top_p": judge.top_p, "max_tokens": judge.max_tokens}
    return ProbabilityJudge(judge.sampler, judge.template, **options)  # type: ignore[arg-type]


READ_BY_PROBABILITY = ("bare", "think_answer")
_UNREAD = Verdict(None, VerdictStatus.NO_VERDICT)
_NOTHING_WRITTEN = Completion("", FinishReason.STOP)


def likelier(margin: float, coverage: float) -> Verdict:
    """The verdict of the greater probability; none where a verdict was not what the model was about to write."""
    from rewardlab.verdicts.margins import LEAST_COVERAGE  # torch; this module is loaded without

    if coverage < LEAST_COVERAGE:
        return Verdict(None, VerdictStatus.NO_VERDICT, "low_coverage")
    if margin == 0:
        return Verdict(None, VerdictStatus.TIE, "probability")
    return Verdict(Choice.FIRST if margin > 0 else Choice.SECOND, VerdictStatus.OK, "probability")


def _open_hf(target: str, asked: str | None, batch_size: int, restart_after_s: float | None) -> tuple[Sampler, Template]:
    from rewardlab.samplers.child_process import ProcessSampler
    from rewardlab.samplers.hf import HFSampler

    template = template_for(Path(target), asked) if Path(target).exists() else load_template(asked or "r1_reward")
    opener = partial(HFSampler.load, target, batch_size=batch_size)
    return (opener() if restart_after_s is None else ProcessSampler(opener, timeout_s=restart_after_s)), template


def _open_vllm(target: str, asked: str | None, args: str, restart_after_s: float | None) -> tuple[Sampler, Template]:
    from rewardlab.samplers.vllm import VLLMSampler
    from rewardlab.samplers.vllm_server import VLLMServerSampler

    template = template_for(Path(target), asked) if Path(target).exists() else load_template(asked or "r1_reward")
    if restart_after_s is None:
        return VLLMSampler.load(target, args=args), template
    return VLLMServerSampler.load(target, args=args, deadline_s=restart_after_s, logprobs=False), template


def _open_openai(target: str, asked: str | None, api_key: str, restart_after_s: float | None) -> tuple[Sampler, Template]:
    from rewardlab.samplers.openai_api import OpenAISampler

    model, at, url = target.partition("@")
    if not (model and at and url.startswith(("http://", "https://"))):
        raise ConfigError(
            f"openai:{target}: expected openai:MODEL@URL, for example openai:gpt-4o@https://host/v1; several as URL,URL"
        )
    # A server has many requests in flight, and gives up on an engine after a time of its own.
    options: dict[str, Any] = {} if restart_after_s is None else {"concurrency": 256, "deadline_s": restart_after_s}
    return OpenAISampler(url.split(","), model, api_key=api_key, **options), load_template(asked or "r1_reward")


def open_judge(
    spec: str,
    *,
    template: str | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 1024,
    batch_size: int = 64,
    api_key: str = "none",
    engine_args: str = "",
    restart_after_s: float | None = None,
) -> GenerativeJudge:
    """The judge a SPEC names: ``hf:PATH`` (folder or hub id), ``vllm:PATH`` (the same through vLLM, with ``engine_args`` as of
    ``vllm serve``) or ``openai:MODEL@URL`` (or URL,URL,...). ``restart_after_s``: the engine runs in a process of its own,
    which is started again if it dies or takes more than so many seconds.

    ``prob:PATH`` or ``prob:vllm:PATH`` weighs probabilities (of a checkpoint trained to give the verdict alone ``hf:`` and
    ``vllm:`` mean this too); ``verify:`` before another, and it verifies its own judgments. Raises ConfigError,
    CheckpointError, EndpointError.
    """
    bare = spec.removeprefix("verify:")
    weighed = bare.removeprefix("prob:")
    if weighed != bare and not weighed.startswith(("vllm:", "hf:")):
        weighed = f"hf:{weighed}" if weighed else weighed
    kind, colon, target = weighed.partition(":")
    openers: dict[str, Callable[[], tuple[Sampler, Template]]] = {
        "hf": lambda: _open_hf(target, template, batch_size, restart_after_s),
        "vllm": lambda: _open_vllm(target, template, engine_args, restart_after_s),
        "openai": lambda: _open_openai(target, template, api_key, restart_after_s),
    }
    if kind not in openers or not colon or not target:
        raise ConfigError(
            f"unknown judge {spec!r}; expected hf:PATH, vllm:PATH, prob:PATH or openai:MODEL@URL, or verify: and one of them"
        )
    sampler, chosen = openers[kind]()
    weighs = weighed != bare or (kind != "openai" and chosen.verdict_format == "bare")
    if weighs and chosen.verdict_format not in READ_BY_PROBABILITY:
        raise ConfigError(
            f"{spec!r}: probabilities are read where <answer> stands, or of a bare verdict, not in "
            f"{chosen.verdict_format}; use hf:"
        )
    if bare != spec:
        if weighs:
            raise ConfigError(f"{spec!r}: a judge that weighs probabilities of single verdicts has no judgment to verify")
        sampler = SelfVerifying(sampler)
    kind_of = ProbabilityJudge if weighs else GenerativeJudge
    judge = kind_of(sampler, chosen, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    judge.spec = spec
    return judge
