"""Scoring rollouts: verdict against label, format, and consistency asked of an endpoint. Fail-closed in every branch."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rewardlab.metrics.running import Metric
from rewardlab.processes import is_main
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.rewards.judgment import JudgedCompletion, RewardParts, RewardTerm, compose, swap_agreement, winner_of
from rewardlab.rewards.rollout import GatherObjects, Rollout, Scored
from rewardlab.samplers.event_loop import EventLoopThread
from rewardlab.types import Choice, Completion, FinishReason, Order, VerdictStatus, choice_of
from rewardlab.verdicts.checklist import checks_of
from rewardlab.verdicts.parse import CHECKLIST, follows_format, verdict_of
from rewardlab.verdicts.places import reasoning_of


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
    (:func:`rewardlab.verdicts.places.with_thinking`).
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
        verdict = verdict_of(completion, self._verdict_format, judged.criteria)
        correct = verdict.choice is not None and verdict.choice is choice_of(judged.preferred, judged.order)
        finished = completion.finish is FinishReason.STOP
        format_ok = finished and follows_format(completion.text, self._verdict_format, opened=self._opened)
        consistency = 0
        if correct and self._judge is not None:
            assert verdict.choice is not None
            consistency = await self._consistency(judged.question, reasoning_of(completion.text), verdict.choice)
        checks = checks_of(completion.text) if finished and self._verdict_format == CHECKLIST else None
        return RewardParts(format_ok, correct, consistency, verdict.status, checks=checks)

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


SAMPLES_PER_STEP = 4


class JudgmentReward:
    """Rewards rollouts whose rows have ``question``, ``order``, ``preferred`` and ``pair_id`` by ``terms``. ``ends`` are the
    tokens that end a completion. The first rollouts of every step are appended to ``samples``. ``gather`` joins the verdicts of
    all processes, as the two orders of a pair may be on two.
    """

    __name__ = "judge_reward"

    def __init__(
        self,
        scorer: JudgmentScorer,
        judge: EndpointConsistencyJudge | None,
        terms: Sequence[RewardTerm],
        *,
        ends: frozenset[int],
        samples: Path,
        gather: GatherObjects = list,
    ) -> None:
        self._gather = gather
        self._scorer, self._judge, self._terms, self._ends, self._path = scorer, judge, terms, ends, samples
        self._loop: EventLoopThread[None] = EventLoopThread(nullcontext)  # the judge's connections outlive a call

    def __call__(self, rollouts: Sequence[Rollout], step: int) -> Scored:
        """Return one reward per rollout; a rollout that cannot be scored earns nothing. Raise EndpointError if the consistency
        judge has given no readable answer to many questions in a row."""
        completions = [
            JudgedCompletion(
                as_completion(rollout.text, rollout.token_ids, self._ends),
                rollout.row["question"],
                Order(rollout.row["order"]),
                int(rollout.row["preferred"]),
                rollout.row["pair_id"],
                rollout.row.get("criteria", ()),
            )
            for rollout in rollouts
        ]
        before = self._request_counts()
        parts = self._loop.run(lambda _: self._scorer.score(completions))
        if self._judge:
            self._judge.refuse_silence()
        if any(term.compares_orders for term in self._terms):
            agreements = self._agreements(rollouts, completions, parts)
            parts = [replace(part, agreement=value) for part, value in zip(parts, agreements, strict=True)]
        parts = compose(parts, completions, self._terms)
        metrics = self._metrics(completions, parts)
        if self._judge:
            after = self._request_counts()
            metrics |= {f"consistency/{name}": Metric(float(after[name] - before[name]), reduce="sum") for name in after}
        self._keep_samples(step, rollouts, completions, parts)
        return Scored(
            rewards=[part.total for part in parts],
            correct=[float(part.correct) for part in parts],
            parsed=[part.status == VerdictStatus.OK for part in parts],
            metrics=metrics,
        )

    def _agreements(
        self, rollouts: Sequence[Rollout], completions: Sequence[JudgedCompletion], parts: Sequence[RewardParts]
    ) -> list[float]:
        winners = [winner_of(part, judged.preferred) for part, judged in zip(parts, completions, strict=True)]
        pair_ids, orders = ([rollout.row[name] for rollout in rollouts] for name in ("pair_id", "order"))
        everyone = self._gather(list(zip(pair_ids, orders, winners, strict=True)))
        return swap_agreement(pair_ids, orders, winners, among=everyone)

    def _metrics(self, completions: Sequence[JudgedCompletion], parts: Sequence[RewardParts]) -> dict[str, Metric]:
        if not parts:
            return {}
        metrics: dict[str, Metric] = {}
        for term in self._terms:
            values = [value for part in parts if (value := part.scores[term.name]) is not None]
            metrics[f"reward/{term.name}"] = Metric(sum(values) / max(1, len(values)), len(values))
            if term.key is None:
                metrics[f"reward/{term.name}_failed_frac"] = Metric(1 - len(values) / len(parts), len(parts))
        metrics |= reward_metrics(parts)  # format and accuracy of every rollout, whatever they are worth
        names_first = [
            (choice_of(judged.preferred, judged.order) is Choice.FIRST) == part.correct
            for part, judged in zip(parts, completions, strict=True)
            if part.status == VerdictStatus.OK
        ]
        if names_first:
            metrics["verdict/first_frac"] = Metric(sum(names_first) / len(names_first), len(names_first))
        return metrics

    def _request_counts(self) -> dict[str, int]:
        """Return how the questions about consistency have gone so far."""
        requests = self._judge.counts if self._judge else {}
        return {
            **{name: requests.get(name, 0) for name in ("asked", "cached", "failed", "unclear")},
            **{name: self._scorer.counts[name] for name in ("late", "broken")},
        }

    def _keep_samples(
        self, step: int, rollouts: Sequence[Rollout], completions: Sequence[JudgedCompletion], parts: Sequence[RewardParts]
    ) -> None:
        if not is_main():
            return
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for rollout, judged, part in list(zip(rollouts, completions, parts, strict=True))[:SAMPLES_PER_STEP]:
                row = {
                    "step": step,
                    "pair_id": rollout.row["pair_id"],
                    "order": judged.order.value,
                    "text": judged.completion.text,
                    **({"turns": list(rollout.turns)} if rollout.turns else {}),  # all that was said, with its verification
                    "num_tokens": judged.completion.num_tokens,
                    "status": part.status,
                    "format": part.format,
                    "correct": part.correct,
                    "consistency": part.consistency,
                    "reward": part.total,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    async def _close(self, _: None) -> None:
        if self._judge is not None:
            await self._judge.aclose()

    def close(self) -> None:
        """Close the judge's connections, within the loop that opened them."""
        self._loop.run(self._close)
