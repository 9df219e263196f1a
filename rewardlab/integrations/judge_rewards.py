"""The rewards of a judge's rollouts, for trainers that ask for one at a time: those of a pair wait here for its other order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rewardlab.errors import EndpointError
from rewardlab.rewards.judgment import RewardParts, RewardWeights, compose, winner_of
from rewardlab.rewards.scorer import EndpointConsistencyJudge, JudgedCompletion, JudgmentScorer
from rewardlab.rewards.swap import swap_agreement
from rewardlab.types import BOTH_ORDERS, VerdictStatus


@dataclass(frozen=True)
class Waiting:
    """A scored rollout that waits for those of its pair's other order."""

    rollout: JudgedCompletion
    part: RewardParts
    agreement: asyncio.Future[float]


class JudgeRewards:
    """Rewards by :func:`rewardlab.rewards.judgment.compose`, as ``rewardlab rl`` pays them, one rollout at a time.

    ``judge`` None: no consistency. With a swap weight the ``num_samples`` rollouts of either order must all come within
    ``deadline_s``.
    """

    def __init__(
        self,
        judge: EndpointConsistencyJudge | None,
        weights: RewardWeights,
        *,
        num_samples: int = 1,
        deadline_s: float = 600.0,
        judge_deadline_s: float = 40.0,
    ) -> None:
        self._judge, self._weights, self._num_samples, self._deadline_s = judge, weights, num_samples, deadline_s
        self._judge_deadline_s = judge_deadline_s
        self._scorers: dict[str, JudgmentScorer] = {}
        self._pairs: dict[str, list[Waiting]] = {}
        self._check: asyncio.Future[None] | None = None

    async def reward(self, rollout: JudgedCompletion, pair_id: str, verdict_format: str) -> dict[str, float]:
        """``score`` and what it is made of, all numbers. Raises EndpointError where a rollout could not be scored, where nobody
        answers about consistency at the start, and where the other order of a pair does not come."""
        await self._somebody_answers()
        scorer = self._scorers.get(verdict_format)
        if scorer is None:
            scorer = JudgmentScorer(verdict_format, self._judge, deadline_s=self._judge_deadline_s)
            self._scorers[verdict_format] = scorer
        (part,) = await scorer.score([rollout])
        if part.status == VerdictStatus.ERROR:
            raise EndpointError(f"{pair_id}: a rollout could not be scored; it gets no reward")
        agreement = await self._agreement(Waiting(rollout, part, asyncio.get_running_loop().create_future()), pair_id)
        (part,) = compose([part], self._weights, agreements=[agreement], lengths=[rollout.completion.num_tokens])
        return {
            "score": part.total,
            "format": float(part.format),
            "correct": float(part.correct),
            "consistency": float(part.consistency),
            "consistency_unknown": float(part.correct and self._judge is not None and part.consistency == 0),
            "invalid": float(part.status != VerdictStatus.OK),
            "swap_agreement": agreement,
            "overlong": part.overlong,
        }

    async def _somebody_answers(self) -> None:
        if self._judge is None:
            return
        if self._check is None:
            self._check = asyncio.ensure_future(self._judge.check())
        try:
            await asyncio.shield(self._check)
        except EndpointError as error:
            self._check = None
            raise EndpointError(f"the consistency reward has nobody to ask: {error}") from error

    async def _agreement(self, own: Waiting, pair_id: str) -> float:
        if not self._weights.swap:
            return 0.0
        waiting = self._pairs.setdefault(pair_id, [])
        waiting.append(own)
        if len(waiting) == 2 * self._num_samples:
            del self._pairs[pair_id]
            self._settle(waiting, pair_id)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await own.agreement
        except TimeoutError as error:
            raise EndpointError(
                f"{pair_id}: {len(waiting)} of the {2 * self._num_samples} rollouts of its two orders came within "
                f"{self._deadline_s:g} s; both orders must be in one batch (`rewardlab data verl --both-orders`, an even "
                "batch, data.shuffle=False)"
            ) from error
        finally:
            if self._pairs.get(pair_id) is waiting:  # one who gives up must not be taken for a rollout of the next epoch
                waiting.remove(own)
                if not waiting:
                    del self._pairs[pair_id]

    def _settle(self, waiting: list[Waiting], pair_id: str) -> None:
        orders = [one.rollout.order for one in waiting]
        if any(orders.count(order) != self._num_samples for order in BOTH_ORDERS):
            shown = ", ".join(sorted(orders))
            failure = EndpointError(f"{pair_id}: came as {shown}, not {self._num_samples} times in each order")
            for one in waiting:
                if not one.agreement.done():
                    one.agreement.set_exception(failure)
                    one.agreement.exception()  # who is gone does not fetch it
            return
        winners = [winner_of(one.part, one.rollout.preferred) for one in waiting]
        for one, agreement in zip(waiting, swap_agreement([pair_id] * len(waiting), orders, winners), strict=True):
            if not one.agreement.done():
                one.agreement.set_result(agreement)
