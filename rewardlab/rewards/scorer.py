"""Scoring rollouts: verdict against label, format, and consistency asked of an endpoint. Fail-closed in every branch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rewardlab.config import ConsistencyConfig
from rewardlab.metrics.running import Mean
from rewardlab.rewards.consistency import consistency_prompt, read_consistency
from rewardlab.rewards.judgment import RewardParts, judge_reward
from rewardlab.samplers.openai_api import ChatEndpoint
from rewardlab.types import Choice, Completion, FinishReason, Message, Order, Part, VerdictStatus, choice_of
from rewardlab.verdicts.parse import follows_format, reasoning_of, verdict_of

CACHE_SIZE = 100_000


class ConsistencyJudge(Protocol):
    """Says whether a reasoning supports a verdict: -1, 0 or +1."""

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int: ...


class EndpointConsistencyJudge:
    """Asks an OpenAI-compatible endpoint at temperature 0, many at once, each question once.

    A failure or an answer that is neither 0 nor 1 scores 0; ``counts`` tells how often: asked, cached, failed, unclear.
    """

    def __init__(self, config: ConsistencyConfig, *, api_key: str = "none") -> None:
        self._config, self._api_key = config, api_key
        self._endpoint: ChatEndpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cache: dict[tuple[str, str, Choice], asyncio.Task[int]] = {}
        self.counts: Counter[str] = Counter()

    def _open(self) -> ChatEndpoint:
        if self._endpoint is None:  # inside the event loop that will use it
            c, self._loop = self._config, asyncio.get_running_loop()
            self._endpoint = ChatEndpoint(
                c.base_url,
                c.model,
                api_key=self._api_key,
                concurrency=c.concurrency,
                deadline_s=c.deadline_s,
                retries=1,
            )
        return self._endpoint

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        key = (question, reasoning, verdict)
        if key in self._cache:
            self.counts["cached"] += 1
        else:
            if len(self._cache) >= CACHE_SIZE:
                self._cache.clear()
            self._cache[key] = asyncio.ensure_future(self._ask(*key))
        return await asyncio.shield(self._cache[key])  # one who stops waiting must not cancel it for the others

    async def _ask(self, question: str, reasoning: str, verdict: Choice) -> int:
        self.counts["asked"] += 1
        prompt = (Message("user", (Part(text=consistency_prompt(question, reasoning, verdict)),)),)
        answer = await self._open().complete(prompt, temperature=0.0, top_p=1.0, max_tokens=self._config.max_tokens, seed=0)
        if answer.finish in (FinishReason.ERROR, FinishReason.TIMEOUT):
            self.counts["failed"] += 1
            self._cache.pop((question, reasoning, verdict), None)
            return 0
        score = read_consistency(answer.text)
        self.counts["unclear"] += score == 0
        return score

    async def check(self) -> None:
        """Raise EndpointError unless the endpoint is there; leaves no connection open."""
        try:
            await self._open().check()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, inside the loop that opened them."""
        if self._endpoint is not None:
            await self._endpoint.aclose()
            self._endpoint = None

    def close(self) -> None:
        """As :meth:`aclose`, from another thread than that of the loop, while it runs."""
        if self._endpoint is not None and self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result(10)


@dataclass(frozen=True)
class Rollout:
    """One completion to score: what was asked (``question``), in which order, and which response is better."""

    completion: Completion
    question: str
    order: Order
    preferred: int


class RolloutScorer:
    """Scores batches of rollouts; the consistency judge is asked only where the verdict is right.

    ``counts["late"]`` and ``counts["broken"]`` tell how often it did not answer within ``deadline_s`` or raised: the
    consistency is then 0.
    """

    def __init__(
        self,
        verdict_format: str,
        judge: ConsistencyJudge | None,
        *,
        format_weight: float = 0.5,
        consistency_weight: float = 0.5,
        deadline_s: float = 60.0,
    ) -> None:
        self._verdict_format, self._judge = verdict_format, judge
        self._weights = {"format_weight": format_weight, "consistency_weight": consistency_weight if judge else 0.0}
        self._deadline_s = deadline_s
        self.counts: Counter[str] = Counter()

    async def score(self, rollouts: Sequence[Rollout]) -> list[RewardParts]:
        return list(await asyncio.gather(*(self._safely(rollout) for rollout in rollouts)))

    async def _safely(self, rollout: Rollout) -> RewardParts:
        try:
            return await self._score(rollout)
        except Exception:  # the boundary: whatever breaks in here earns nothing and is counted
            return RewardParts(False, False, 0, VerdictStatus.ERROR.value, 0.0)

    async def _score(self, rollout: Rollout) -> RewardParts:
        completion = rollout.completion
        verdict = verdict_of(completion, self._verdict_format)
        right = verdict.choice is not None and verdict.choice is choice_of(rollout.preferred, rollout.order)
        format_ok = completion.finish is FinishReason.STOP and follows_format(completion.text)
        consistency = 0
        if right and self._judge is not None:
            assert verdict.choice is not None
            consistency = await self._consistency(rollout.question, reasoning_of(completion.text), verdict.choice)
        total = judge_reward(format_ok=format_ok, right=right, consistency=consistency, **self._weights)
        return RewardParts(format_ok, right, consistency, verdict.status.value, total)

    async def _consistency(self, question: str, reasoning: str, verdict: Choice) -> int:
        assert self._judge is not None
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._judge.score(question, reasoning, verdict)
        except TimeoutError:
            self.counts["late"] += 1
        except Exception:  # the boundary: a broken consistency judge must not cost a right verdict its reward
            self.counts["broken"] += 1
        return 0


def reward_metrics(parts: Sequence[RewardParts]) -> dict[str, float]:
    """Means over a batch: each part of the reward, and the share of every status that is not ok."""
    n = max(1, len(parts))
    right = [part for part in parts if part.right]
    metrics = {
        "reward/format": Mean(sum(part.format for part in parts) / n, len(parts)),
        "reward/accuracy": Mean(len(right) / n, len(parts)),
        "reward/consistency_of_right": Mean(sum(part.consistency for part in right) / max(1, len(right)), len(right)),
        "reward/invalid_frac": Mean(sum(part.status != VerdictStatus.OK for part in parts) / n, len(parts)),
    }
    counts = Counter(part.status for part in parts)  # each status, met here or not: another process may have met it
    return metrics | {f"verdict/{status}": Mean(counts[status] / n, len(parts)) for status in VerdictStatus}


def as_completion(text: str, token_ids: Sequence[int], ends: frozenset[int]) -> Completion:
    """A trainer's raw completion as a record; one whose last token is no end token was cut off."""
    finished = bool(token_ids) and token_ids[-1] in ends
    return Completion(text, FinishReason.STOP if finished else FinishReason.LENGTH, len(token_ids), token_ids=tuple(token_ids))


def unpack(columns: dict[str, Any], n: int) -> tuple[str, Order, int]:
    """Row ``n`` of the reward columns: (question, order, preferred)."""
    return columns["question"][n], Order(columns["order"][n]), int(columns["preferred"][n])
