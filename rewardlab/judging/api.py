"""Judges for Python programs: open one by its name, compare, rank and reward; as calls that wait, or for asyncio.

``rewardlab.open_judge`` and ``rewardlab.open_async_judge`` are these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from rewardlab.config.judge import JudgeConfig
from rewardlab.data.inputs import PairInput, candidates_of_texts, pair_of
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import FRAMES
from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.best_of_n import play_many
from rewardlab.judging.comparison import ComparisonResult, check_answers
from rewardlab.judging.engines import endpoint_hosts, open_model_judge
from rewardlab.judging.group_rewards import reward_group
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.ranking import Ranking
from rewardlab.judging.spec import PANEL, POOL, SERVED, WITHOUT_SAMPLER, JudgeSpec, judge_config, judge_video_policy
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Order, PreferencePair

T = TypeVar("T")
THREADS = 64  # calls at a time of a judge that takes several


def open_judge(
    judge: str | JudgeConfig, *, api_key: str | None = None, allow_urls: Sequence[str] = (), **keys: Any
) -> SyncJudge:
    """Return a judge to query.

    ``judge``: ``openai:gpt-4o``, ``openai:MODEL@URL``, ``hf:PATH``, ``vllm:PATH``, ``prob:PATH``, ``http://HOST:PORT``,
    ``panel:A,B,C`` (:mod:`rewardlab.judging.spec`), a YAML file, the folder of a benchmark run, or a config.

    ``keys`` are those of :class:`rewardlab.config.judge.JudgeConfig`, such as ``template``, ``temperature`` and
    ``max_tokens``; a served judge has its own. ``api_key`` is by default the environment's OPENAI_API_KEY, for a served judge
    REWARDLAB_API_KEY; a panel takes one only if all its endpoints are ``openai:`` on one host. Images given as URLs are fetched
    if they begin with one of ``allow_urls``, such as ``https://images.host/folder/``. Raise ConfigError, CheckpointError or
    EndpointError.
    """
    config = judge_config(judge, keys)
    parsed = JudgeSpec.parse(config.judge, *WITHOUT_SAMPLER)
    if api_key and parsed.engine in (PANEL, POOL):
        _check_key(config.judge, parsed.members)
    server_key = (api_key or "") if parsed.engine == SERVED else ""
    engine = open_model_judge(config, api_key=api_key or "", server_key=server_key)
    return SyncJudge(engine, AllowedUrls(allow_urls), judge_video_policy(config.judge, *WITHOUT_SAMPLER))


def open_async_judge(judge: str | JudgeConfig, **options: Any) -> AsyncJudge:
    """Return the judge that :func:`open_judge` opens, for asyncio; the options are the same, and so is what it raises."""
    return AsyncJudge(open_judge(judge, **options))


class SyncJudge:
    """A judge to ask. Each method waits for the answer; :class:`AsyncJudge` has the same ones for asyncio.

    Every comparison is made in both orders, ``votes`` times in each (default: as the judge's config says, else once). Images
    are paths, encoded bytes, PIL images, data URLs or allowed URLs; videos paths or bytes. All methods raise DataError or
    MediaError for what cannot be judged, and EndpointError where no vote at all was answered: a key that is refused, a model
    that is not there, a server that is down.
    """

    def __init__(self, engine: ModelJudge, urls: AllowedUrls | None = None, video_policy: VideoPolicy | None = None) -> None:
        self.engine, self._urls, self._video_policy = engine, urls or AllowedUrls(), video_policy

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
        responses: Sequence[str],
        *,
        images: Sequence[Any] = (),
        videos: Sequence[Any] = (),
        frames: int = FRAMES,
        votes: int | None = None,
        seed: int = 0,
    ) -> ComparisonResult:
        """Return which of two responses is better. A video is shown after the images, as at most ``frames`` frames or as the
        family of a local checkpoint samples it."""
        row = {"pair_id": "pair", "question": question, "responses": responses, "images": images, "videos": videos}
        return self.compare_many([row], frames=frames, votes=votes, seed=seed)[0]

    def compare_many(
        self, pairs: Iterable[PairInput], *, frames: int = FRAMES, votes: int | None = None, seed: int = 0
    ) -> list[ComparisonResult]:
        """Return the result of each pair, in one call of the engine. A pair is a PreferencePair, or a row with the columns of a
        data file, of which ``question`` and ``responses`` are required.

        Where some pairs were answered and others were not, nothing is raised: ``result.failed`` says so of a pair.
        """
        num_votes = self._num_votes(votes)
        how: dict[str, Any] = {"frames": frames, "policy": self._video_policy}
        checked = [pair_of(pair, n, self._urls, **how) for n, pair in enumerate(pairs)]
        if not checked:
            return []
        orders = [BOTH_ORDERS] * len(checked)
        judgments = self.engine.compare_many(checked, orders=orders, num_votes=num_votes, seed=seed)
        check_answers(judgments, self.spec)
        return [ComparisonResult.of(pair, judged) for pair, judged in zip(checked, judgments, strict=True)]

    def rank(
        self,
        question: str,
        responses: Sequence[str],
        *,
        images: Sequence[Any] = (),
        plan: str = "adaptive",
        budget: int | None = None,
        votes: int | None = None,
        seed: int = 0,
    ) -> Ranking:
        """Return the ranking of two or more responses: ``best`` is the index of the best one, None where several share the
        first place. ``plan`` says which are compared (:mod:`rewardlab.judging.ranking`), ``budget`` how many at most."""
        group = self._group(question, responses, images)
        judge = _Answering(self.engine)
        [game] = play_many(judge, [group], plan=plan, budget=budget, num_votes=self._num_votes(votes), seed=seed)
        return game.ranking

    def rewards(
        self,
        question: str,
        responses: Sequence[str],
        *,
        images: Sequence[Any] = (),
        strategy: str = "all_pairs",
        anchor: str | None = None,
        budget: int | None = None,
        votes: int | None = None,
        seed: int = 0,
    ) -> list[float | None]:
        """Return a reward for each response, by the rule of a served judge's ``/v1/rewards``: the net win rate over its
        comparisons, in -1..1; with the strategy ``bradley_terry`` its strength in logits. None where none could be judged.

        ``strategy``: all_pairs, circular, knockout, bradley_terry, or anchor, each against the response ``anchor``.
        """
        if (strategy == "anchor") != (anchor is not None):
            raise ConfigError("the strategy anchor needs an anchor, and no other strategy accepts one")
        group = self._group(question, responses, images, anchor)
        judge = _Answering(self.engine)
        return reward_group(judge, group, strategy=strategy, budget=budget, num_votes=self._num_votes(votes), seed=seed).rewards

    def _num_votes(self, votes: int | None) -> int:
        """Return how many votes to sample in each order: those of a call, else those of the judge's config, else one."""
        _check_votes(num := (self.engine.config.votes or 1) if votes is None else votes)
        return num

    def _group(self, question: str, responses: Sequence[str], images: Sequence[Any], anchor: str | None = None) -> Candidates:
        given = responses if anchor is None else [*responses, anchor]
        group = candidates_of_texts(question, given, images=images, urls=self._urls)
        if len(group.responses) < 2:
            raise DataError(f"{len(group.responses)} responses cannot be compared; give two or more")
        return group


class _Answering:
    """A judge that raises EndpointError where the first call is not answered at all: no further round would be."""

    def __init__(self, judge: ModelJudge) -> None:
        self._judge, self._has_answered = judge, False
        self.name, self.sees, self.temperature = judge.name, judge.sees, judge.temperature

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        judgments = self._judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
        if not self._has_answered:
            check_answers(judgments, self._judge.spec)
        self._has_answered = True
        return judgments


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

    async def compare(
        self,
        question: str,
        responses: Sequence[str],
        *,
        images: Sequence[Any] = (),
        videos: Sequence[Any] = (),
        frames: int = FRAMES,
        votes: int | None = None,
        seed: int = 0,
    ) -> ComparisonResult:
        """Return what :meth:`SyncJudge.compare` does."""
        options = {"images": images, "videos": videos, "frames": frames, "votes": votes, "seed": seed}
        return await self._call(self._judge.compare, question, responses, **options)

    async def compare_many(
        self, pairs: Iterable[PairInput], *, frames: int = FRAMES, votes: int | None = None, seed: int = 0
    ) -> list[ComparisonResult]:
        """Return what :meth:`SyncJudge.compare_many` does."""
        return await self._call(self._judge.compare_many, pairs, frames=frames, votes=votes, seed=seed)

    async def rank(
        self,
        question: str,
        responses: Sequence[str],
        *,
        images: Sequence[Any] = (),
        plan: str = "adaptive",
        budget: int | None = None,
        votes: int | None = None,
        seed: int = 0,
    ) -> Ranking:
        """Return what :meth:`SyncJudge.rank` does."""
        options = {"images": images, "plan": plan, "budget": budget, "votes": votes, "seed": seed}
        return await self._call(self._judge.rank, question, responses, **options)

    async def rewards(
        self,
        question: str,
        responses: Sequence[str],
        *,
        images: Sequence[Any] = (),
        strategy: str = "all_pairs",
        anchor: str | None = None,
        budget: int | None = None,
        votes: int | None = None,
        seed: int = 0,
    ) -> list[float | None]:
        """Return what :meth:`SyncJudge.rewards` does."""
        options = {"images": images, "strategy": strategy, "anchor": anchor, "budget": budget, "votes": votes, "seed": seed}
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
