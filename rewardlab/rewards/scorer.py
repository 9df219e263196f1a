"""Scoring rollouts: verdict against label, format, and consistency asked of an endpoint. Fail-closed in every branch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from rewardlab.config import ConsistencyConfig
from rewardlab.errors import EndpointError
from rewardlab.metrics.running import Metric
from rewardlab.rewards.consistency import consistency_prompt, probe_checker, read_consistency, refuse_pair_judge
from rewardlab.rewards.judgment import JudgedCompletion, RewardParts
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.chat_endpoint import ChatEndpoint
from rewardlab.types import Choice, Completion, FinishReason, Message, Part, VerdictStatus, choice_of
from rewardlab.verdicts.parse import follows_format, reasoning_of, verdict_of

CACHE_SIZE = 100_000
GIVE_UP_AFTER = 20  # answers in a row that cannot be read


class ConsistencyJudge(Protocol):
    """Says whether a reasoning supports a verdict: -1, 0 or +1. ``rounds`` is how many rounds of questions a new one waits for,
    its own included."""

    @property
    def rounds(self) -> int: ...

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int: ...


class EndpointConsistencyJudge:
    """Queries an OpenAI-compatible endpoint at temperature 0, concurrently, each question once. Failures and answers other than
    0 and 1 score 0; ``counts`` has asked, cached, failed and unclear."""

    def __init__(self, config: ConsistencyConfig, *, api_key: str = "none") -> None:
        self._config, self._api_key = config, api_key
        self._endpoint: ChatEndpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cache: dict[tuple[str, str, Choice], asyncio.Task[int]] = {}
        self._num_unread, self._last_unread = 0, ""  # answers in a row that say nothing, and the last of them
        self._num_open = 0  # questions without an answer yet, sent or waiting to be
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

    @property
    def rounds(self) -> int:
        at_once = self._endpoint.slots.limit if self._endpoint else self._config.concurrency
        return 1 + self._num_open // int(at_once)

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        key = (question, reasoning, verdict)
        if key in self._cache:
            self.counts["cached"] += 1
        else:
            if len(self._cache) >= CACHE_SIZE:
                self._cache.clear()
            self._cache[key] = asyncio.ensure_future(self._ask(*key))
            self._num_open += 1
            self._cache[key].add_done_callback(self._close_question)
        return await asyncio.shield(self._cache[key])  # one who stops waiting must not cancel it for the others

    def _close_question(self, _: asyncio.Task[int]) -> None:
        self._num_open -= 1

    async def _ask(self, question: str, reasoning: str, verdict: Choice) -> int:
        self.counts["asked"] += 1
        answer = await self._complete(consistency_prompt(question, reasoning, verdict))
        if answer.finish in (FinishReason.ERROR, FinishReason.TIMEOUT):
            self.counts["failed"] += 1
            self._cache.pop((question, reasoning, verdict), None)
            self._note_unread(f"failed ({answer.error or answer.finish})")
            return 0
        score = read_consistency(answer.text)
        self.counts["unclear"] += score == 0
        if score:
            self._num_unread = 0
        else:
            self._note_unread(f"answered {answer.text!r:.80} instead of 0 or 1")
        return score

    async def _complete(self, prompt: str) -> Completion:
        messages = (Message("user", (Part(text=prompt),)),)
        return await self._open().complete(messages, SamplingParams(temperature=0.0, max_tokens=self._config.max_tokens))

    def _note_unread(self, why: str) -> None:
        self._num_unread, self._last_unread = self._num_unread + 1, why

    def refuse_silence(self) -> None:
        """Raise EndpointError if :data:`GIVE_UP_AFTER` answers in a row could not be read."""
        if self._num_unread >= GIVE_UP_AFTER:
            raise EndpointError(
                f"{self._config.base_url}: none of the last {self._num_unread:,} consistency requests was answered: "
                f"{self._config.model} {self._last_unread}. Fix the cause and run the same command again, or switch it "
                "off with consistency.weight=0"
            )

    async def check(self) -> None:
        """Raise EndpointError unless the endpoint gives a readable answer, ConfigError for a `rewardlab serve`; leaves no
        connection open."""
        try:
            await self._open().check()
            await refuse_pair_judge(self._config.base_url, self._api_key)
            await probe_checker(self._complete, f"{self._config.base_url}: {self._config.model}")
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, inside the loop that opened them."""
        if self._endpoint is not None:
            await self._endpoint.aclose()
            self._endpoint = None

    def close(self) -> None:
        """Do what :meth:`aclose` does, from another thread than that of the loop, while it runs."""
        if self._endpoint is not None and self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result(10)


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
