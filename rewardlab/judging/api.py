"""Judges for Python programs: open one by its name, compare, rank and reward; as calls that wait, or for asyncio.

``rewardlab.open_judge`` and ``rewardlab.open_async_judge`` are these.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from rewardlab.config.judge import JudgeConfig
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.inputs import PairInput, candidates_of_texts, pair_of
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import FRAMES
from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import ConfigError, DataError, EndpointError, MediaError
from rewardlab.judging.best_of_n import play_many
from rewardlab.judging.engines import endpoint_hosts, open_model_judge
from rewardlab.judging.group_rewards import reward_group
from rewardlab.judging.guarantee import Guarantee, judge_facts, read_guarantee
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.ranking import WHOLE, Ranking
from rewardlab.judging.spec import PANEL, POOL, SERVED, WITHOUT_SAMPLER, JudgeSpec, judge_config, judge_video_policy
from rewardlab.types import (
    BOTH_ORDERS,
    IMAGE_MARK,
    VIDEO_MARK,
    Candidates,
    Judgment,
    Order,
    Outcome,
    PreferencePair,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.checklist import ClaimCheck, checks_of, judgments_by_criterion
from rewardlab.verdicts.panel import orders_consistent
from rewardlab.verdicts.votes import FAILED, VALID, both_orders_or_none, winner_share


@dataclass(frozen=True, repr=False)
class Ballot:
    """One vote of a judge.

    ``order`` is how it saw the responses: ``given`` with response 0 first, ``swapped`` with response 1 first. ``winner`` is the
    index of the response it is for, None without a valid verdict; ``status`` says what became of its verdict and ``error`` why
    it has no text. ``text`` is all that the judge wrote. ``probability``: of response 0 (0..1), of a judge that tells it.
    ``member``: of a panel, who cast it.
    """

    order: Order
    winner: int | None
    status: VerdictStatus
    text: str
    error: str = ""
    num_tokens: int = 0
    probability: float | None = None
    member: str = ""

    @staticmethod
    def of(vote: Vote) -> Ballot:
        probability = None
        if vote.margin is not None:
            margin = vote.margin if vote.order is Order.GIVEN else -vote.margin
            probability = 0.5 + math.tanh(margin / 2) / 2
        completion = vote.completion
        return Ballot(
            order=vote.order,
            winner=vote.winner,
            status=vote.verdict.status,
            text=completion.text,
            error=completion.error,
            num_tokens=completion.num_tokens,
            probability=probability,
            member=vote.member,
        )

    @property
    def reasoning(self) -> str:
        """Return what the judge wrote between ``<think>`` and ``</think>``, to the end if that is missing; without such tags
        all of its text."""
        _, opened, rest = self.text.partition("<think>")
        return rest.rpartition("</think>")[0].strip() or rest.strip() if opened else self.text.strip()

    @property
    def checks(self) -> tuple[ClaimCheck, ...]:
        """Return the checks of a judgment that is a checklist, else none."""
        return checks_of(self.text) or ()

    def __repr__(self) -> str:
        verdict = f"for {self.winner}" if self.winner is not None else self.status.value
        text = self.error if self.status in FAILED else self.reasoning
        return f"Ballot({self.order.value}, {verdict}{f', {self.member}' if self.member else ''}: {_short(text)!r})"


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """The pair and its judgment.

    Where no vote of an order names a response there is no outcome (NO_VALID_VOTE), as of a served judge: the votes of the other
    order alone would carry its position bias.
    """

    pair: PreferencePair
    judgment: Judgment

    @staticmethod
    def of(pair: PreferencePair, judged: Judgment) -> ComparisonResult:
        return ComparisonResult(pair, both_orders_or_none(judged))

    @property
    def winner(self) -> int | None:
        """Return the index of the better response; None if neither has more than half of the votes asked: ``outcome`` says
        why."""
        return self.judgment.outcome.winner

    @property
    def outcome(self) -> Outcome:
        return self.judgment.outcome

    @property
    def share_0(self) -> float | None:
        """Return the share of valid votes for response 0 (0..1), either order weighing the same; of a judge that tells
        probabilities the probability of response 0. None if no vote of an order names a response, or fewer than half of the
        votes are valid."""
        return self.judgment.share_0

    @property
    def share(self) -> float | None:
        """Return the winner's share (0..1), as ``share_0`` is counted; None without a winner. It is above one half,
        except for a panel, whose majority of members can differ from the mean of their shares."""
        return winner_share(self.judgment)

    @cached_property
    def votes(self) -> tuple[Ballot, ...]:
        return tuple(map(Ballot.of, self.judgment.votes))

    @cached_property
    def criteria(self) -> Mapping[str, ComparisonResult]:
        """Return what the votes come to by each criterion that their checks name; empty for a judge without checklists."""
        return {name: ComparisonResult.of(self.pair, judged) for name, judged in judgments_by_criterion(self.judgment).items()}

    @property
    def swap_consistent(self) -> bool | None:
        """Return whether the majorities of both orders name the same response; one that is even names none. None where
        no vote of an order names one. Of a panel the votes of members that abstain do not count."""
        return orders_consistent(self.judgment.votes)

    @property
    def invalid(self) -> Mapping[str, int]:
        """Return how many votes have no readable verdict, by status; empty where all have one."""
        return dict(Counter(vote.status.value for vote in self.votes if vote.status not in VALID))

    @property
    def failed(self) -> bool:
        """Return whether every vote failed for want of an answer: this says nothing of the responses."""
        return all(vote.status in FAILED for vote in self.votes)

    def summary(self) -> str:
        """Return the outcome in a line."""
        if self.failed:
            return f"failed: every vote; {self.votes[0].error if self.votes else 'there is none'}"
        counts = ", ".join(f"{number} {status}" for status, number in self.invalid.items())
        bad = f"; without a verdict: {counts} of {len(self.votes)} votes" if counts else f"; {len(self.votes)} votes"
        consistent = {True: "; both orders agree", False: "; the orders do not agree", None: ""}[self.swap_consistent]
        if self.winner is None or self.share is None:
            return f"{self.outcome.words}{bad}{consistent}"
        return f"response {self.winner} wins with {self.share:.0%}{bad}{consistent}"

    def __repr__(self) -> str:
        lines = [f"ComparisonResult: {self.summary()}", f"  question: {_short(self.pair.question)!r}"]
        lines += [f"  response {n}: {_short(response)!r}" for n, response in enumerate(self.pair.responses)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:

        return comparison_html(self)


def _short(text: str, length: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def check_answers(judgments: Sequence[Judgment], judge: str) -> None:
    """Raise EndpointError where every vote failed for want of an answer, in the words of the first failure."""
    votes = [vote for judged in judgments for vote in judged.votes]
    if votes and all(vote.verdict.status in FAILED for vote in votes):
        raise EndpointError(f"{judge}: no vote was answered: {votes[0].completion.error or votes[0].verdict.status.value}")


_ORDER_NAMES = {Order.GIVEN: "response 0 shown first", Order.SWAPPED: "response 1 shown first"}
_BOX = "border:1px solid #8886;border-radius:6px;padding:.5em .7em;margin:.3em 0;white-space:pre-wrap;overflow-wrap:anywhere"


def comparison_html(result: ComparisonResult) -> str:
    """Return the comparison as a fragment of HTML that refers to nothing outside itself."""
    pair = result.pair
    parts = [f"<b>{_text(result.summary())}</b>", _images(pair.images), f"<div style='{_BOX}'>{_text(pair.question)}</div>"]
    for n, response in enumerate(pair.responses):
        mark = "outline:2px solid #2a7;" if result.winner == n else ""
        parts.append(
            f"<div style='{mark}{_BOX}'><b>response {n}</b>{' · wins' if result.winner == n else ''}\n{_text(response)}"
            f"{_images(pair.response_images[n])}</div>"
        )
    for order in BOTH_ORDERS:
        if votes := [vote for vote in result.votes if vote.order is order]:
            parts.append(f"<b>{_ORDER_NAMES[order]}</b>{''.join(map(_vote, votes))}")
    return f"<div style='max-width:60em;font-family:sans-serif'>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return escape(text.replace(IMAGE_MARK, "[image]").replace(VIDEO_MARK, "[video]"))


def _images(images: tuple[bytes, ...]) -> str:
    return "".join(f"<div>{_image(data)}</div>" for data in images)


def _image(data: bytes) -> str:
    try:
        return f"<img alt='' style='max-width:360px' src='{escape(to_data_url(thumbnail(data)))}'>"
    except (MediaError, OSError):  # a pair that was made by hand may hold anything
        return "[an image that cannot be read]"


def _vote(vote: Ballot) -> str:
    verdict = f"for response {vote.winner}" if vote.winner is not None else f"no verdict: {vote.status.value}"
    who = f" · {_text(vote.member)}" if vote.member else ""
    reasoning = _text(vote.reasoning or vote.error) or "(nothing)"
    body = f"<summary>{_text(verdict)}{who}</summary><div style='{_BOX}'>{reasoning}</div>"
    return f"<details style='margin:.3em 0'>{body}</details>"


T = TypeVar("T")
THREADS = 64  # calls at a time of a judge that takes several


def open_judge(
    judge: str | JudgeConfig,
    *,
    api_key: str | None = None,
    allow_urls: Sequence[str] = (),
    guarantee: str | Path | None = None,
    **keys: Any,
) -> SyncJudge:
    """Return a judge to query.

    ``judge``: ``openai:gpt-4o``, ``openai:MODEL@URL``, ``hf:PATH``, ``vllm:PATH``, ``prob:PATH``, ``http://HOST:PORT``,
    ``panel:A,B,C`` (:mod:`rewardlab.judging.spec`), a YAML file, the folder of a benchmark run, or a config.

    ``keys`` are those of :class:`rewardlab.config.judge.JudgeConfig`, such as ``template``, ``temperature`` and
    ``max_tokens``; a served judge has its own. ``api_key`` is by default the environment's OPENAI_API_KEY, for a served judge
    REWARDLAB_API_KEY; a panel takes one only if all its endpoints are ``openai:`` on one host. Images given as URLs are fetched
    if they begin with one of ``allow_urls``, such as ``https://images.host/folder/``. ``guarantee``: the file that `rewardlab
    guarantee` wrote of this judge, for calls with ``error``. Raise ConfigError, CheckpointError or EndpointError, and DataError
    for a guarantee that cannot be read.
    """
    config = judge_config(judge, keys)
    parsed = JudgeSpec.parse(config.judge, *WITHOUT_SAMPLER)
    if api_key and parsed.engine in (PANEL, POOL):
        _check_key(config.judge, parsed.members)
    server_key = (api_key or "") if parsed.engine == SERVED else ""
    engine = open_model_judge(config, api_key=api_key or "", server_key=server_key)
    certified = None if guarantee is None else read_guarantee(Path(guarantee))
    return SyncJudge(engine, AllowedUrls(allow_urls), judge_video_policy(config.judge, *WITHOUT_SAMPLER), certified)


def open_async_judge(judge: str | JudgeConfig, **options: Any) -> AsyncJudge:
    """Return the judge that :func:`open_judge` opens, for asyncio; the options are the same, and so is what it raises."""
    return AsyncJudge(open_judge(judge, **options))


class SyncJudge:
    """A judge to ask. Each method waits for the answer; :class:`AsyncJudge` has the same ones for asyncio.

    Every comparison is made in both orders, ``votes`` times in each (default: as the judge's config says, else once). Images
    are paths, encoded bytes, PIL images, data URLs or allowed URLs; videos paths or bytes. All methods raise DataError or
    MediaError for what cannot be judged, and EndpointError where no vote at all was answered: a key that is refused, a model
    that is not there, a server that is down.

    With ``error``, such as 0.05, a comparison has a verdict if the judge's ``guarantee`` bounds the error of its verdicts by so
    much, else the outcome ABSTAINED and no share; votes are the guarantee's. Raise ConfigError where no guarantee fits: there
    is none, or it is of another judge, of other weights or of a larger error.
    """

    def __init__(
        self,
        engine: ModelJudge,
        urls: AllowedUrls | None = None,
        video_policy: VideoPolicy | None = None,
        guarantee: Guarantee | None = None,
    ) -> None:
        self.engine, self._urls, self._video_policy = engine, urls or AllowedUrls(), video_policy
        self._guarantee = guarantee
        self._facts = judge_facts(engine.config, engine.identity) if guarantee else {}  # of the weights as they were opened

    @property
    def spec(self) -> str:
        """Return what named it."""
        return self.engine.spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"

    def check(self) -> None:
        """Raise EndpointError if the judge is remote and nothing answers."""
        self.engine.check()

    def compare(
        self,
        question: str,
        responses: Sequence[Any],
        *,
        images: Sequence[Any] = (),
        videos: Sequence[Any] = (),
        criteria: Sequence[Any] = (),
        frames: int = FRAMES,
        votes: int | None = None,
        seed: int = 0,
        error: float | None = None,
    ) -> ComparisonResult:
        """Return which of two responses is better. A video is shown after the images, as at most ``frames`` frames or as the
        family of a local checkpoint samples it. ``criteria`` are names, or objects with ``name``, ``weight`` and
        ``description``; a judge of the template ``checklist`` has a result for each (:attr:`ComparisonResult.criteria`)."""
        row = {"pair_id": "pair", "question": question, "responses": responses, "images": images, "videos": videos}
        row |= {"criteria": criteria}
        return self.compare_many([row], frames=frames, votes=votes, seed=seed, error=error)[0]

    def compare_many(
        self,
        pairs: Iterable[PairInput],
        *,
        frames: int = FRAMES,
        votes: int | None = None,
        seed: int = 0,
        error: float | None = None,
    ) -> list[ComparisonResult]:
        """Return the result of each pair, in one call of the engine. A pair is a PreferencePair, or a row with the columns of a
        data file, of which ``question`` and ``responses`` are required.

        Where some pairs were answered and others were not, nothing is raised: ``result.failed`` says so of a pair.
        """
        num_votes, decide = self._rule(error, votes)
        how: dict[str, Any] = {"frames": frames, "policy": self._video_policy}
        checked = [pair_of(pair, n, self._urls, **how) for n, pair in enumerate(pairs)]
        if not checked:
            return []
        orders = [BOTH_ORDERS] * len(checked)
        judgments = self.engine.compare_many(checked, orders=orders, num_votes=num_votes, seed=seed)
        check_answers(judgments, self.spec)
        return [ComparisonResult.of(pair, decide(judged)) for pair, judged in zip(checked, judgments, strict=True)]

    def rank(
        self,
        question: str,
        responses: Sequence[Any],
        *,
        images: Sequence[Any] = (),
        criteria: Sequence[Any] = (),
        plan: str = "adaptive",
        budget: int | None = None,
        votes: int | None = None,
        seed: int = 0,
    ) -> Ranking:
        """Return the ranking of two or more responses: ``best`` is the index of the best one, None where several share the
        first place. ``plan`` says which are compared (:mod:`rewardlab.judging.ranking`), ``budget`` how many at most.
        ``criteria`` as of :meth:`compare`."""
        group = self._group(question, responses, images, criteria)
        judge = _Answering(self.engine)
        [game] = play_many(judge, [group], plan=plan, budget=budget, num_votes=self._num_votes(votes), seed=seed)
        return game.ranking

    def rewards(
        self,
        question: str,
        responses: Sequence[Any],
        *,
        images: Sequence[Any] = (),
        criteria: Sequence[Any] = (),
        strategy: str = "all_pairs",
        anchor: Any = None,
        budget: int | None = None,
        votes: int | None = None,
        seed: int = 0,
        error: float | None = None,
    ) -> list[float | None]:
        """Return a reward for each response, by the rule of a served judge's ``/v1/rewards``: the net win rate over its
        comparisons, in -1..1; with the strategy ``bradley_terry`` its strength in logits. None where none could be judged, or
        the judge abstained from all.

        ``strategy``: all_pairs, circular, knockout, bradley_terry, or anchor, each against the response ``anchor``; whole, for
        judges of lists: one judgment of all responses holds every comparison.
        """
        if (strategy == "anchor") != (anchor is not None):
            raise ConfigError("the strategy anchor needs an anchor, and no other strategy accepts one")
        if strategy == WHOLE and error is not None:
            raise ConfigError("error is of judgments of pairs; the strategy whole has one of a list. Leave one of them out")
        group = self._group(question, responses, images, criteria, anchor)
        num_votes, decide = self._rule(error, votes)
        judge = _Answering(self.engine, decide)
        return reward_group(judge, group, strategy=strategy, budget=budget, num_votes=num_votes, seed=seed).rewards

    def _rule(self, error: float | None, votes: int | None) -> tuple[int, Callable[[Judgment], Judgment]]:
        """Return how many votes to sample in each order, and what to make of a judgment. Raise ConfigError for an ``error``
        that no guarantee fits."""
        if error is None:
            return self._num_votes(votes), _as_it_is
        if self._guarantee is None:
            raise ConfigError(f"error={error:g} needs a guarantee: open_judge(..., guarantee=FILE), see `rewardlab guarantee`")
        return self._guarantee.check(error, self._facts, votes), self._guarantee.decide

    def _num_votes(self, votes: int | None) -> int:
        """Return how many votes to sample in each order: those of a call, else those of the judge's config, else one."""
        _check_votes(num := (self.engine.config.votes or 1) if votes is None else votes)
        return num

    def _group(
        self, question: str, responses: Sequence[Any], images: Sequence[Any], criteria: Sequence[Any] = (), anchor: Any = None
    ) -> Candidates:
        given = responses if anchor is None else [*responses, anchor]
        group = candidates_of_texts(question, given, images=images, criteria=criteria, urls=self._urls)
        if len(group.responses) < 2:
            raise DataError(f"{len(group.responses)} responses cannot be compared; give two or more")
        return group


def _as_it_is(judged: Judgment) -> Judgment:
    return judged


class _Answering:
    """A judge that raises EndpointError where the first call is not answered at all: no further round would be."""

    def __init__(self, judge: ModelJudge, decide: Callable[[Judgment], Judgment] = _as_it_is) -> None:
        self._judge, self._has_answered, self._decide = judge, False, decide
        self.name, self.sees, self.temperature = judge.name, judge.sees, judge.temperature
        self.verdict_format = judge.verdict_format

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        judgments = self._judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
        if not self._has_answered:
            check_answers(judgments, self._judge.spec)
        self._has_answered = True
        return list(map(self._decide, judgments))


class AsyncJudge:
    """A :class:`SyncJudge` for asyncio, with the same methods to be awaited.

    Calls of a remote judge run at the same time, up to :data:`THREADS`; those of a judge that computes here one after the
    other, beside the event loop. A call that is cancelled is not waited for, and finishes by itself.
    """

    def __init__(self, judge: SyncJudge) -> None:
        self._judge = judge
        threads = THREADS if judge.engine.is_batch_invariant else 1
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="judge")

    @property
    def spec(self) -> str:
        """Return what named it."""
        return self._judge.spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"

    async def _call(self, method: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(method, *arguments, **options))

    async def check(self) -> None:
        """Raise EndpointError if the judge is remote and nothing answers."""
        await self._call(self._judge.check)

    async def compare(self, question: str, responses: Sequence[Any], **options: Any) -> ComparisonResult:
        """Return what :meth:`SyncJudge.compare` does; the options are the same."""
        return await self._call(self._judge.compare, question, responses, **options)

    async def compare_many(self, pairs: Iterable[PairInput], **options: Any) -> list[ComparisonResult]:
        """Return what :meth:`SyncJudge.compare_many` does; the options are the same."""
        return await self._call(self._judge.compare_many, pairs, **options)

    async def rank(self, question: str, responses: Sequence[Any], **options: Any) -> Ranking:
        """Return what :meth:`SyncJudge.rank` does; the options are the same."""
        return await self._call(self._judge.rank, question, responses, **options)

    async def rewards(self, question: str, responses: Sequence[Any], **options: Any) -> list[float | None]:
        """Return what :meth:`SyncJudge.rewards` does; the options are the same."""
        return await self._call(self._judge.rewards, question, responses, **options)


def _check_key(spec: str, members: Sequence[str]) -> None:
    """Raise ConfigError where one key would go to several hosts, or to a served judge, which has another."""
    hosts = endpoint_hosts(spec)
    if len(hosts) > 1 or any(JudgeSpec.parse(member, *WITHOUT_SAMPLER).engine == SERVED for member in members):
        raise ConfigError(
            f"{spec!r}: api_key is one key, and the members' endpoints are {', '.join(sorted(hosts))}; a panel takes one "
            "only if all are openai: on one host. Open each member with its own: "
            "SyncJudge(PanelJudge([open_judge(A, api_key=...).engine, ...]))"
        )


def _check_votes(votes: int) -> None:
    if isinstance(votes, bool) or not isinstance(votes, int) or votes < 1:
        raise ConfigError(f"votes is {votes!r}; expected a whole number of 1 or more")
