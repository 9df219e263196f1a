"""The service behind every route: pairs judged, groups rewarded, media loaded."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fastapi.concurrency import run_in_threadpool

from rewardlab.config.judge import JudgeConfig
from rewardlab.data.conversations import Content, place_media, read_content, without_empty_places
from rewardlab.data.rows import FRAMES, criteria_of, text_with_frames, validate
from rewardlab.data.urls import without_credentials
from rewardlab.errors import ConfigError, DataError, InputError
from rewardlab.judging.certificate import misfit
from rewardlab.judging.drift import DriftMonitor
from rewardlab.judging.group_rewards import GroupRewards, JudgedMatch, most_matches
from rewardlab.judging.guarantee import Guarantee
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.lists import require_lists
from rewardlab.judging.ranking import WHOLE
from rewardlab.prompts import with_criteria
from rewardlab.rewards.reward_log import RewardLog
from rewardlab.serving.admission import SHARE, as_part
from rewardlab.serving.auth import Key, KeysFile
from rewardlab.serving.conversations import Sample, check_references
from rewardlab.serving.errors import DeadlineExceededError, NoVerdictError
from rewardlab.serving.judge_file import JudgeFile
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media, MediaLoader, processor_pixels, run_in_turn
from rewardlab.serving.peers import MemberReward, Peers
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_record import ServingHistograms, current_request, tenant_of_request
from rewardlab.serving.schedule import QueueOptions
from rewardlab.serving.schemas import (
    MAX_VIDEOS,
    Answer,
    CheckResult,
    CriterionResult,
    JudgeRequest,
    JudgeResponse,
    MatchResult,
    RequestBase,
    RewardsRequest,
    RewardsResponse,
    VoteResult,
    text_of_answer,
)
from rewardlab.serving.voting import UNIQUE, GroupBuffer, VoteCollector, VotingOptions, gather_bounded, group_rewards
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Order, PreferencePair, Vote, response_at
from rewardlab.verdicts.checklist import ClaimCheck, checks_of, judgments_by_criterion
from rewardlab.verdicts.lists import SCALES
from rewardlab.verdicts.panel import orders_consistent
from rewardlab.verdicts.votes import reduce_votes

LOG = logging.getLogger(__name__)
ORDERS = {"both": BOTH_ORDERS, "given": (Order.GIVEN,), "swapped": (Order.SWAPPED,)}


@dataclass(frozen=True)
class GroupRules:
    """How the responses of a framework's request are compared: on the plan of ``strategy``, by the judge's own votes.

    Responses that come one at a time wait for ``group_size`` of their prompt. With ``joins_parts`` so do several of one request
    that are fewer: they are a part of a group.
    """

    strategy: str = "all_pairs"
    group_size: int = 8
    joins_parts: bool = False


@dataclass(frozen=True)
class ServerOptions:
    """Everything about a server but its judge.

    Requests need one of ``keys``, or one that ``keys_file`` holds now, if either is given. The server answers to the names
    ``allowed_hosts`` (default: to any), and shares groups with ``peers``. ``judge_file`` replaces the judge when its file
    names another. ``reward_log`` records the groups that it rewards. ``guarantee`` is for requests
    that name an error, ``certificate`` of the judge that the server starts with.
    """

    rules: GroupRules = field(default_factory=GroupRules)
    media: Media | None = None
    keys: Sequence[Key] = ()
    keys_file: KeysFile | None = None
    allowed_hosts: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    peers: Peers | None = None
    judge_file: JudgeFile | None = None
    reward_log: RewardLog | None = None
    queue: QueueOptions = field(default_factory=QueueOptions)
    guarantee: Guarantee | None = None
    certificate: Mapping[str, Any] | None = None


class JudgeService:
    """One judge, its queue and the media sent to it."""

    def __init__(self, queue: JudgeQueue, options: ServerOptions, histograms: ServingHistograms) -> None:
        self.queue, self.rules, self.limits, self.peers = queue, options.rules, options.limits, options.peers
        self.histograms = histograms
        media = options.media or Media(limits=self.limits)
        self.media = MediaLoader(media, self.limits, processor_pixels(self.judge))
        self.collector, self.guarantee = VoteCollector(queue), options.guarantee
        self.drift: dict[str, DriftMonitor] = {}  # of the requests of each key that named an error
        self._certificate = options.certificate
        self.reward_log = options.reward_log
        self.group_buffer: GroupBuffer[Sample, MemberReward] = GroupBuffer(
            self._collected_rewards,
            size=self.rules.group_size,
            timeout_s=self.limits.group_timeout,
            digest=lambda sample: sample.digest,
        )

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Return the certificate if it is of the judge that serves now."""
        content = self._certificate
        return content if content is not None and not misfit(content, self.queue.versions.newest.facts) else None

    @property
    def judge(self) -> GenerativeJudge:
        """Return the judge of the request, outside of a request the newest."""
        return _judge_of(self.queue.versions.current)

    @property
    def voting(self) -> VotingOptions:
        """Return how a framework's request is voted on: as the config of its judge says."""
        return VotingOptions.of(self.judge.config)

    @property
    def judge_name(self) -> str:
        return without_credentials(self.judge.name)

    async def sample_rewards(self, samples: Sequence[Sample], *, is_whole: bool = False) -> list[float]:
        """Return the values of :meth:`member_rewards`."""
        return [reward.value for reward in await self.member_rewards(samples, is_whole=is_whole)]

    async def member_rewards(self, samples: Sequence[Sample], *, is_whole: bool = False) -> list[MemberReward]:
        """Return a reward in -1..1 for each: samples of one prompt are compared with each other; a single one with its anchor,
        or with the next ones that come for its prompt. So is a part of a group if the rules have ``joins_parts``, unless the
        request ``is_whole``.

        Raise NoVerdictError, GroupTimeoutError, OverloadedError, InputError.
        """
        for sample in samples:
            await self.check_context(with_criteria(sample.question, sample.criteria), sample.response)
        if key := current_request().idempotency_key:
            samples = [replace(sample, rollout=f"{UNIQUE}{key} {n}") for n, sample in enumerate(samples)]
        groups: dict[tuple[object, ...], list[int]] = {}
        for n, sample in enumerate(samples):
            groups.setdefault(sample.prompt, []).append(n)
        least = self.rules.group_size if self.rules.joins_parts and not is_whole else 2
        sizes = [(len(group), samples[group[0]].anchor is not None) for group in groups.values()]
        self.admit_groups([(number, has_anchor) for number, has_anchor in sizes if number >= least or has_anchor])

        async def reward(indices: list[int]) -> list[MemberReward]:
            group = [samples[n] for n in indices]
            if len(group) < least and group[0].anchor is None:
                return await gather_bounded(partial(self._join_group, sample) for sample in group)
            return await self._group_rewards(group)

        rewards = dict[int, MemberReward]()
        results = await gather_bounded(partial(reward, indices) for indices in groups.values())
        for indices, values in zip(groups.values(), results, strict=True):
            rewards |= zip(indices, values, strict=True)
        return [rewards[n] for n in range(len(samples))]

    async def _join_group(self, sample: Sample) -> MemberReward:
        """Return the reward of a sample that came alone, within its group, here or at the peer that is its home."""
        key = sample.key
        home = self.peers.home_of(key) if self.peers else None
        if self.peers and home and home != self.peers.address:
            reward = await self.peers.join(home, sample, lambda: self.queue.versions.newest.hash)
        else:
            reward = await self.group_buffer.join(key, sample, sample.rollout)
        current_request().weights.add(reward.weights)  # of the judge of the group, which may be newer than this request
        return reward

    async def _collected_rewards(self, samples: list[Sample]) -> list[MemberReward]:
        """Return the rewards of a group whose samples came one at a time, by the judge of the request that completed it."""
        self.admit_groups([(len(samples), False)])
        version = self.queue.versions.current
        with self.queue.versions.bound(version):
            rewards = await self._group_rewards(samples)
        return [replace(reward, weights=version.weights) for reward in rewards]

    def admit_groups(self, groups: Sequence[tuple[int, bool]]) -> None:
        """Admit the comparisons of a framework's groups: (size, whether it has an anchor) of each."""
        self.limits.check_responses(max(number for number, _ in groups) if groups else 0)
        comparisons = sum(number if has_anchor else most_matches(self.rules.strategy, number) for number, has_anchor in groups)
        self.admit(comparisons, 2 * self.voting.votes * comparisons)

    async def check_context(self, *texts: str) -> None:
        """Raise ContextLengthError for texts of one prompt that are longer than the judge's model reads, if that is known."""
        context = self.queue.versions.current.context
        if context is not None and context.may_exceed(texts):
            await run_in_threadpool(context.check, texts)

    def admit(self, comparisons: int, votes: int) -> None:
        """Count the comparisons of a request before any begins. Raise LimitError for a request with too many comparisons or
        votes, OverloadedError if its key has too many in progress."""
        self.limits.check_comparisons(comparisons, votes)
        SHARE.get().take_comparisons(comparisons)

    def admit_requests(self, requests: Sequence[JudgeRequest | RewardsRequest]) -> None:
        certified = self.guarantee.votes if self.guarantee else None
        sizes = [
            _size(request, certified if certified and request.error is not None else request.votes) for request in requests
        ]
        self.admit(sum(number for number, _ in sizes), sum(number * votes for number, votes in sizes))

    @as_part
    async def _group_rewards(self, samples: list[Sample]) -> list[MemberReward]:
        result = await self.compare_samples(samples)
        whole = {name: values for name, values in result.components.items() if None not in values}
        return [
            MemberReward(value, components={name: part for name, parts in whole.items() if (part := parts[n]) is not None})
            for n, value in enumerate(self.all_rewards(result))
        ]

    def all_rewards(self, result: GroupRewards) -> list[float]:
        """Return the rewards of a group. Raise NoVerdictError unless each response has one."""
        rewards = [reward for reward in result.rewards if reward is not None]
        if failed := len(result.rewards) - len(rewards):
            cure = "send the request again: comparisons without a verdict are sampled with another seed"
            if self.judge.temperature == 0:
                cure = "the judge is greedy, so a retry would give the same answer: serve it with a temperature above 0"
            raise NoVerdictError(f"no comparison of {failed} of {len(result.rewards)} responses has a verdict; {cure}")
        return rewards

    async def compare_samples(
        self, samples: Sequence[Sample], *, strategy: str = "", budget: int | None = None
    ) -> GroupRewards:
        """Return the rewards of the samples of one prompt, against their anchor if they have one, by the server's own rules
        without ``strategy``. Raise what :meth:`compare_group` and :meth:`images` raise."""
        first, options = samples[0], replace(self.voting, deadline=_after(self.limits.timeout))
        question, contents = first.contents[0], [sample.contents[1] for sample in samples]
        if first.anchor is not None:
            contents, strategy = [*contents, Content(first.anchor)], "anchor"
        contents = list(map(without_empty_places, contents))
        group = replace(await self._group(question, contents, options), criteria=first.criteria)
        return await self.compare_group(group, strategy, budget, options)

    async def _group(
        self, question: Content, answers: Sequence[Content], options: VotingOptions, frames: int = FRAMES
    ) -> Candidates:
        """Return a question and its answers with their media loaded, videos as ``frames``. Raise what :meth:`shown` raises, and
        DeadlineExceededError if they are not loaded by the deadline."""
        async with _loaded_by(options):
            (text, images), *read = await self.shown((question, *answers), frames)
        of_answers = tuple(images for _, images in read) if any(images for _, images in read) else ()
        return Candidates("request", text, tuple(text for text, _ in read), images, response_images=of_answers)

    async def shown(self, contents: Sequence[Content], frames: int = FRAMES) -> list[tuple[str, tuple[bytes, ...]]]:
        """Return the text of each content and its images, videos as ``frames``. Raise MediaError, and what
        :meth:`check_media` raises of one."""
        for content in contents:
            self.check_media(content)

        async def load() -> list[tuple[str, tuple[bytes, ...]]]:
            loaded: dict[str, bytes] = {}
            films: dict[str, tuple[bytes, ...]] = {}
            for content in contents:
                for n, video in enumerate(content.videos):
                    if video not in films:  # many answers may name one
                        films[video] = await self.media.frames(video, frames, n)
            return [
                text_with_frames(
                    content.text,
                    await self.media.images(content.images, loaded),
                    [films[video] for video in content.videos],
                )
                for content in contents
            ]

        return await SHARE.get().load(load)

    def check_media(self, *contents: Content) -> None:
        """Raise LimitError for too many images in all of the contents, DataError for too many videos and for what is no
        reference."""
        self.limits.check_images(sum(len(content.images) for content in contents))
        if (number := sum(len(content.videos) for content in contents)) > MAX_VIDEOS:
            raise DataError(f"a question, a response or a chat has {number} videos; expected at most {MAX_VIDEOS}")
        check_references(*(media for content in contents for media in (content.images, content.videos)))

    async def _contents(self, request: RequestBase, answers: Sequence[Answer], options: VotingOptions) -> Candidates:
        """Return the question and the answers of a request, each medium at its mark. Raise DataError for other numbers of marks
        and media, and what :meth:`_group` raises."""
        contents = [Content(request.question), *(read_content(answer, "a response") for answer in answers)]
        question, *read = place_media(contents, request.images, request.videos, where="the request", answers_quote=True)
        criteria = criteria_of(
            [item if isinstance(item, str) else item.model_dump() for item in request.criteria], "the request"
        )
        return replace(await self._group(question, read, options, request.frames), criteria=criteria)

    async def _pair(self, request: JudgeRequest, options: VotingOptions) -> PreferencePair:
        described = (item if isinstance(item, str) else item.description for item in request.criteria)
        await self.check_context(request.question, *map(text_of_answer, request.responses), *described)
        group = await self._contents(request, request.responses, options)
        return validate(replace(group.pair(0, 1), pair_id="request"), where="request")

    def _num_votes(self, request: RequestBase) -> int:
        """Return how many votes of each order a request takes. Raise ConfigError for one that names an error without a
        guarantee of the judge that fits."""
        if request.error is None:
            return request.votes
        if self.guarantee is None:
            raise ConfigError("this server has no guarantee, so that error cannot be used; start it with --guarantee FILE")
        if request.policy is not None or getattr(request, "orders", "both") != "both":
            raise ConfigError("error is guaranteed for both orders and the judge's own policy; leave out policy and orders")
        votes = request.votes if "votes" in request.model_fields_set else None
        return self.guarantee.check(request.error, self.queue.versions.current.facts, votes)

    def _voting_options(
        self, request: RequestBase, orders: tuple[Order, ...] = BOTH_ORDERS, *, waits_for_room: bool = False
    ) -> VotingOptions:
        return VotingOptions(
            self._num_votes(request),
            request.policy,
            request.stop_error,
            orders,
            request.seed,
            request.priority,
            _after(request.timeout_s),
            waits_for_room,
            guarantee=None if request.error is None else self.guarantee,
        )

    @as_part
    async def judge_pair(self, request: JudgeRequest, *, waits_for_room: bool = False) -> JudgeResponse:
        """Return the judgment of a pair; with ``waits_for_room`` wait for a full queue. Raise InputError, OverloadedError,
        DeadlineExceededError, EngineFailedError."""
        options = self._voting_options(request, ORDERS[request.orders], waits_for_room=waits_for_room)
        pair, start = await self._pair(request, options), time.perf_counter()
        judgment = await self.collector.collect(pair, options)
        self._watch(judgment, options)
        return judge_response(judgment, self.queue.versions.current, time.perf_counter() - start)

    async def judge_live(self, request: JudgeRequest) -> AsyncIterator[VoteResult | JudgeResponse]:
        """Yield the votes as they come, a round of all orders at a time, then the judgment. Raise as judge_pair does."""
        options = self._voting_options(request, ORDERS[request.orders])
        pair, start = await self._pair(request, options), time.perf_counter()
        judgment, num_sent = None, 0
        async for judgment in self.collector.rounds(pair, options):
            for vote in judgment.votes[num_sent:]:
                yield vote_result(vote)
            num_sent = len(judgment.votes)
        if judgment is not None:
            self._watch(judgment, options)
            yield judge_response(judgment, self.queue.versions.current, time.perf_counter() - start)

    @as_part
    async def rewards(self, request: RewardsRequest, *, waits_for_room: bool = False) -> RewardsResponse:
        """Return the rewards of a group. Raise as judge_pair does."""
        self.limits.check_responses(len(request.responses))
        options = self._voting_options(request, waits_for_room=waits_for_room)
        answers = (*request.responses, *([request.anchor] if request.anchor is not None else []))
        group, start = await self._contents(request, answers, options), time.perf_counter()
        result = await self.compare_group(group, request.strategy, request.budget, options)
        seconds, version, num = time.perf_counter() - start, self.queue.versions.current, len(request.responses)
        return await run_in_turn(rewards_response, result, version, num, seconds)  # of thousands of matches

    async def compare_group(self, group: Candidates, strategy: str, budget: int | None, options: VotingOptions) -> GroupRewards:
        """Return the rewards of a group, on the server's own plan if ``strategy`` is "".

        Equal or empty responses are compared as they are: policies write such. A group is admitted as a whole: matches wait
        for room in the queue.
        """
        strategy, verdict_format = strategy or self.rules.strategy, self.judge.verdict_format
        if strategy == WHOLE:
            require_lists(verdict_format, len(group.responses))
            if options.guarantee is not None or options.policy == "sequential":
                raise InputError("the strategy whole has one judgment of a list; expected no error and the policy fixed")
        by_length = sorted(group.responses, key=len)
        texts = group.responses if strategy == WHOLE and verdict_format not in SCALES else (by_length[0], by_length[-1])
        question = with_criteria(group.question, group.criteria)
        await self.check_context(question, *texts)  # the longest is compared with one at least
        if not options.waits_for_room:
            self.queue.check_room()
            options = replace(options, waits_for_room=True)

        async def compare(pair: PreferencePair) -> Judgment:
            return await self.collector.collect(pair, options)

        result = await group_rewards(compare, group, strategy=strategy, budget=budget, verdict_format=verdict_format)
        if self.reward_log is not None:
            self.reward_log.add(group, result, tenant_of_request(), self.queue.versions.current.hash)
        if (first := next((match.judgment for match in result.matches if match.judgment is not None), None)) is not None:
            self._watch(first, options)  # the others of the group are of the same prompt
        return result

    def _watch(self, judgment: Judgment, options: VotingOptions) -> None:
        """Compare the votes of a request with ``error`` with those that the guarantee was certified on, and log what left."""
        if options.guarantee is None or options.guarantee.reference is None:
            return
        if (tenant := tenant_of_request()) not in self.drift:
            self.drift[tenant] = DriftMonitor(options.guarantee.reference)
        for sentence in self.drift[tenant].add(reduce_votes(judgment.pair_id, judgment.votes)):
            LOG.warning("requests of key %r: %s", tenant, sentence)


_SECRET_NAME = re.compile(r"(?:token|key|password|secret|authorization)$", re.IGNORECASE)
_OF_THE_MACHINE = {"cache", "api_key_env"}  # keys of a judge that say nothing about its judgments


def published_config(config: JudgeConfig) -> dict[str, Any]:
    """Return the keys of a judge that differ from their defaults, without credentials, local folders and names of variables."""
    return dict(_published(config.model_dump(mode="json", exclude=_OF_THE_MACHINE, exclude_defaults=True)))


def _published(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: "***" if _SECRET_NAME.search(name) else _published(below) for name, below in value.items()}
    if isinstance(value, list):
        return [_published(below) for below in value]
    return without_credentials(value) if isinstance(value, str) else value


def vote_result(vote: Vote) -> VoteResult:
    return VoteResult(
        order=vote.order.value,
        status=vote.verdict.status.value,
        winner=0 if vote.winner == 0 else 1 if vote.winner == 1 else None,
        text=vote.completion.text,
        num_tokens=vote.completion.num_tokens,
        p_first_shown=None if vote.margin is None else 0.5 + math.tanh(vote.margin / 2) / 2,
        error=without_credentials(vote.completion.error),
        checks=[_check_result(check, vote.order) for check in checks_of(vote.completion.text) or ()],
    )


def _check_result(check: ClaimCheck, order: Order) -> CheckResult:
    return CheckResult(
        response=1 if response_at(check.choice, order) else 0,
        criterion=check.criterion,
        weight=check.weight,
        claim=check.claim,
        finding=check.finding.value,
        reason=check.reason,
    )


def _criterion_result(judged: Judgment) -> CriterionResult:
    return CriterionResult(
        outcome=judged.outcome.value, p_first_better=judged.share_0, swap_consistent=orders_consistent(judged.votes)
    )


def judge_response(judgment: Judgment, version: JudgeVersion, seconds: float) -> JudgeResponse:
    votes = [vote_result(vote) for vote in judgment.votes]
    return JudgeResponse(
        p_first_better=judgment.share_0,
        outcome=judgment.outcome.value,
        num_valid=sum(vote.winner is not None for vote in votes),
        votes=votes,
        criteria={name: _criterion_result(judged) for name, judged in judgments_by_criterion(judgment).items()},
        num_tokens=sum(vote.num_tokens for vote in votes),
        **_judge_facts(version),
        seconds=round(seconds, 4),
    )


def _judge_of(version: JudgeVersion) -> GenerativeJudge:
    assert isinstance(version.judge, GenerativeJudge)
    return version.judge


def _judge_facts(version: JudgeVersion) -> dict[str, Any]:
    judge = _judge_of(version)
    return {
        "judge": without_credentials(judge.name),
        "weights": version.weights or None,
        "template_hash": judge.template.hash,
        "judge_hash": version.hash,
    }


def rewards_response(result: GroupRewards, version: JudgeVersion, num: int, seconds: float) -> RewardsResponse:
    judgments = [match.judgment for match in result.matches if match.judgment is not None]
    tiers = [[n for n in tier if n < num] for tier in result.ranking.tiers]
    return RewardsResponse(
        rewards=result.rewards,
        deviations=result.deviations,
        tiers=[tier for tier in tiers if tier],
        matches=[_match_result(match, num) for match in result.matches],
        components=dict(result.components),
        num_failed=sum(match.judgment is None or match.judgment.share_0 is None for match in result.matches),
        num_tokens=sum(vote.completion.num_tokens for judgment in judgments for vote in judgment.votes),
        **_judge_facts(version),
        seconds=round(seconds, 4),
    )


def _match_result(match: JudgedMatch, num: int) -> MatchResult:
    judgment = match.judgment
    statuses = Counter(vote.verdict.status.value for vote in judgment.votes) if judgment else Counter()
    return MatchResult(
        first=match.first,
        second=match.second if match.second < num else None,
        share_first=judgment.share_0 if judgment else None,
        outcome=judgment.outcome.value if judgment else None,
        statuses=dict(statuses),
    )


def _size(request: JudgeRequest | RewardsRequest, votes: int) -> tuple[int, int]:
    if isinstance(request, JudgeRequest):
        return 1, votes * len(ORDERS[request.orders])
    num = len(request.responses) + (request.anchor is not None)
    return most_matches(request.strategy, num, request.budget), 2 * votes


@asynccontextmanager
async def _loaded_by(options: VotingOptions) -> AsyncIterator[None]:
    """Raise DeadlineExceededError if the deadline passes within the context, in which media are loaded."""
    try:
        async with asyncio.timeout_at(options.deadline) as timeout:
            yield
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise DeadlineExceededError("the images and videos were not decoded by the deadline of the request") from error


def _after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
