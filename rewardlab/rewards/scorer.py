"""Scoring rollouts: verdict against label, format, and consistency asked of an endpoint. Fail-closed in every branch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from rewardlab.metrics.running import Metric
from rewardlab.rewards.judgment import JudgedCompletion, RewardParts
from rewardlab.types import Choice, Completion, FinishReason, VerdictStatus, choice_of
from rewardlab.verdicts.parse import follows_format, reasoning_of, verdict_of


class ConsistencyJudge(Protocol):
    """Says whether a reasoning supports a verdict: -1, 0 or +1. ``rounds`` is how many rounds of questions a new one waits for,
    its own included."""

    @property
    def rounds(self) -> int: ...

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int: ...


class JudgmentScorer:
    """Reads verdict, format and consistency of completions; the consistency judge is queried for correct verdicts only.
    ``deadline_s`` is for one round of questions: of N questions at once, C at a time, all are answered within ceil(N / C) *
    ``deadline_s``. ``counts["late"]`` and ``counts["broken"]`` count questions without an answer in time, or with an exception:
    their consistency is 0. ``opened``: whether prompts end in ``<think>`` and texts lack it
    (:func:`rewardlab.verdicts.parse.with_thinking`).
    """

    def __init__(
        self,
        verdict_format: str,
        judge: ConsistencyJudge | None,
        *,
        deadline_s: float = 60.0,
        opened: bool | None = False,
    ) -> None:
        self._verdict_format, self._judge, self._opened = verdict_format, judge, opened
        self._deadline_s = deadline_s
        self.counts: Counter[str] = Counter()

    async def score(self, completions: Sequence[JudgedCompletion]) -> list[RewardParts]:
        """Return the parts of each reward, without totals."""
        return list(await asyncio.gather(*(self._score_safely(completion) for completion in completions)))

    async def _score_safely(self, judged: JudgedCompletion) -> RewardParts:
        try:
            return await self._score(judged)
        except Exception:  # the boundary: whatever breaks in here earns nothing and is counted
            return RewardParts(False, False, 0, VerdictStatus.ERROR)

    async def _score(self, judged: JudgedCompletion) -> RewardParts:
        completion = judged.completion
        verdict = verdict_of(completion, self._verdict_format)
        correct = verdict.choice is not None and verdict.choice is choice_of(judged.preferred, judged.order)
        format_ok = completion.finish is FinishReason.STOP and follows_format(completion.text, opened=self._opened)
        consistency = 0
        if correct and self._judge is not None:
            assert verdict.choice is not None
            consistency = await self._consistency(judged.question, reasoning_of(completion.text), verdict.choice)
        return RewardParts(format_ok, correct, consistency, verdict.status)

    async def _consistency(self, question: str, reasoning: str, verdict: Choice) -> int:
        assert self._judge is not None
        try:
            async with asyncio.timeout(self._deadline_s * self._judge.rounds):
                score = await self._judge.score(question, reasoning, verdict)
        except TimeoutError:
            self.counts["late"] += 1
            return 0
        except Exception:  # the boundary: a broken consistency judge must not cost a correct verdict its reward
            self.counts["broken"] += 1
            return 0
        if score not in (-1, 0, 1):
            raise ValueError(f"consistency is -1, 0 or +1, got {score!r}")
        return score


def reward_metrics(parts: Sequence[RewardParts]) -> dict[str, Metric]:
    """Return means over a batch: each part of the reward, and the share of every status that is not ok."""
    n = max(1, len(parts))
    correct = [part for part in parts if part.correct]
    consistency = sum(part.consistency for part in correct) / max(1, len(correct))
    metrics = {
        "reward/format": Metric(sum(part.format for part in parts) / n, len(parts)),
        "reward/accuracy": Metric(len(correct) / n, len(parts)),
        "reward/consistency_of_correct": Metric(consistency, len(correct)),
        "reward/invalid_frac": Metric(sum(part.status != VerdictStatus.OK for part in parts) / n, len(parts)),
    }
    counts = Counter(part.status for part in parts)  # each status, met here or not: another process may have met it
    return metrics | {f"verdict/{status}": Metric(counts[status] / n, len(parts)) for status in VerdictStatus}


def as_completion(text: str, token_ids: Sequence[int], ends: frozenset[int]) -> Completion:
    """Return a trainer's raw completion as a record; one whose last token is no end token was cut off."""
    finished = bool(token_ids) and token_ids[-1] in ends
    return Completion(text, FinishReason.STOP if finished else FinishReason.LENGTH, len(token_ids), token_ids=tuple(token_ids))
