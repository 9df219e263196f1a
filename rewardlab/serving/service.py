"""What every door of the server leads to: a pair judged, a group rewarded, images resolved."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from fastapi.concurrency import run_in_threadpool

from rewardlab.data.rows import validate
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.serving.errors import UnjudgedError
from rewardlab.serving.gather import together
from rewardlab.serving.group_buffer import Cohorts
from rewardlab.serving.groups import GroupRewards, group_rewards
from rewardlab.serving.media import Media
from rewardlab.serving.queue import Batcher
from rewardlab.serving.responses import answer_of, rewards_of, wire_vote
from rewardlab.serving.schemas import Asked, JudgeRequest, JudgeResponse, RewardsRequest, RewardsResponse, WireVote
from rewardlab.serving.text import Sample
from rewardlab.serving.voting import Asker, Asking
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Order, PreferencePair

ORDERS = {"both": BOTH_ORDERS, "given": (Order.GIVEN,), "swapped": (Order.SWAPPED,)}


@dataclass(frozen=True)
class GroupRules:
    """How responses are compared where a framework's request cannot say it.

    ``asking`` about every two of them, by the ``strategy`` of a group; responses that come one at a time wait for ``cohort`` of
    their prompt, at most ``cohort_timeout_s``.
    """

    asking: Asking = field(default_factory=Asking)
    strategy: str = "all_pairs"
    cohort: int = 8
    cohort_timeout_s: float = 60.0


class JudgeService:
    """One judge, its queue and the media sent to it."""

    def __init__(
        self, judge: GenerativeJudge, batcher: Batcher, rules: GroupRules | None = None, media: Media | None = None
    ) -> None:
        self.judge, self.batcher, self.rules, self.media = judge, batcher, rules or GroupRules(), media or Media()
        self.asker = Asker(batcher, weighs=probability_judge_of(judge) is not None)
        self.cohorts: Cohorts[Sample, float] = Cohorts(
            self._group_rewards, size=self.rules.cohort, timeout_s=self.rules.cohort_timeout_s
        )

    async def sample_rewards(self, samples: Sequence[Sample]) -> list[float]:
        """A reward for each, in -1..1: those of one prompt are compared with each other, one alone with its anchor, or with the
        next ones that come for its prompt.

        Raises UnjudgedError, AloneError (a cohort that did not fill), OverloadedError, InputError.
        """
        groups: dict[str, list[int]] = {}
        for n, sample in enumerate(samples):
            groups.setdefault(sample.key, []).append(n)

        async def reward(places: list[int]) -> list[float]:
            own = [samples[n] for n in places]
            if len(own) == 1 and own[0].anchor is None:
                return [await self.cohorts.join(own[0].key, own[0])]
            return await self._group_rewards(own)

        rewarded = await together(reward(places) for places in groups.values())
        by_place = {
            n: value
            for places, own in zip(groups.values(), rewarded, strict=True)
            for n, value in zip(places, own, strict=True)
        }
        return [by_place[n] for n in range(len(samples))]

    async def _group_rewards(self, samples: list[Sample]) -> list[float]:
        first, images = samples[0], await self.images(samples[0].images)
        anchored = first.anchor is not None
        responses = (*(one.response for one in samples), *([first.anchor] if first.anchor is not None else []))
        group = Candidates("samples", first.question, responses, images)
        found = await self.play(group, "anchor" if anchored else "")
        if any(reward is None for reward in found.rewards):
            errors = sorted({match.error for match in found.matches if match.error})
            failed = sum(reward is None for reward in found.rewards)
            raise UnjudgedError(f"no comparison of {failed} of {len(samples)} responses could be judged; {'; '.join(errors)}")
        return [reward for reward in found.rewards if reward is not None]

    async def images(self, references: Sequence[str]) -> tuple[bytes, ...]:
        """Raises MediaError."""
        if not references:
            return ()
        return await run_in_threadpool(lambda: tuple(self.media.image(one, n) for n, one in enumerate(references)))

    async def seen(self, asked: Asked) -> tuple[bytes, ...]:
        """The images of a native request, then the frames of its videos. Raises MediaError."""
        shown = await self.images(asked.images)
        for n, one in enumerate(asked.videos):
            shown += await run_in_threadpool(self.media.frames, one, asked.frames, n)
        return shown

    async def _pair(self, request: JudgeRequest) -> PreferencePair:
        shown = await self.seen(request)
        return validate(PreferencePair("request", request.question, request.responses, None, shown), where="request")

    async def judge_pair(self, request: JudgeRequest) -> JudgeResponse:
        """Raises InputError, OverloadedError, TooLateError, EngineFailedError."""
        pair, begun = await self._pair(request), time.perf_counter()
        judged = await self.asker.ask(pair, _asking(request, ORDERS[request.orders]))
        return answer_of(judged, self.judge, time.perf_counter() - begun)

    async def judge_live(self, request: JudgeRequest) -> AsyncIterator[WireVote | JudgeResponse]:
        """The votes as they are cast, a round of all orders at a time, and the answer at last. Raises as judge_pair does."""
        pair, begun = await self._pair(request), time.perf_counter()
        judged, told = None, 0
        async for judged in self.asker.rounds(pair, _asking(request, ORDERS[request.orders])):
            for vote in judged.votes[told:]:
                yield wire_vote(vote)
            told = len(judged.votes)
        if judged is not None:
            yield answer_of(judged, self.judge, time.perf_counter() - begun)

    async def rewards(self, request: RewardsRequest) -> RewardsResponse:
        """Raises InputError, OverloadedError. What fails after that is a match without a judgment."""
        shown, begun = await self.seen(request), time.perf_counter()
        responses = (*request.responses, *([request.anchor] if request.anchor is not None else []))
        group = Candidates("request", request.question, responses, shown)
        found = await self.play(group, request.strategy, request.budget, _asking(request))
        return rewards_of(found, self.judge, len(request.responses), time.perf_counter() - begun)

    async def play(
        self, group: Candidates, strategy: str = "", budget: int | None = None, how: Asking | None = None
    ) -> GroupRewards:
        """The rewards of a group, by the server's own rules where nothing else is said.

        Equal or empty responses are compared as they are: policies write such.
        """

        async def ask(pair: PreferencePair) -> Judgment:
            return await self.asker.ask(pair, how or self.rules.asking)

        return await group_rewards(ask, group, strategy=strategy or self.rules.strategy, budget=budget)


def _asking(request: Asked, orders: tuple[Order, ...] = BOTH_ORDERS) -> Asking:
    return Asking(
        request.votes, request.policy, request.error, orders, request.seed, request.priority, timeout_s=request.timeout_s
    )
