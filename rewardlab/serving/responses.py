"""Judgments, rewards and the state of the queue as responses of the HTTP API."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from typing import Any

from rewardlab.judging.group_rewards import GroupRewards, JudgedMatch
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.serving.answer_signs import AnswerSigns
from rewardlab.serving.group_buffer import GroupBuffer
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.queue_records import COUNTS
from rewardlab.serving.request_context import TENANT
from rewardlab.serving.schemas import JudgeResponse, LatencySample, MatchResult, RewardsResponse, StatusResponse, VoteResult
from rewardlab.serving.voting import VoteCollector
from rewardlab.types import Judgment, Vote

_LABEL = re.compile(r"(\w+ [12AB])\W*\{(first|second)\}")


def vote_result(vote: Vote) -> VoteResult:
    return VoteResult(
        order=vote.order.value,
        status=vote.verdict.status.value,
        winner=0 if vote.winner == 0 else 1 if vote.winner == 1 else None,
        text=vote.completion.text,
        num_tokens=vote.completion.num_tokens,
        p_first_shown=None if vote.margin is None else 0.5 + math.tanh(vote.margin / 2) / 2,
        error=vote.completion.error,
    )


def judge_response(judgment: Judgment, version: JudgeVersion, seconds: float) -> JudgeResponse:
    votes = [vote_result(vote) for vote in judgment.votes]
    return JudgeResponse(
        p_first_better=judgment.share_0,
        outcome=judgment.outcome.value,
        num_valid=sum(vote.winner is not None for vote in votes),
        votes=votes,
        num_tokens=sum(vote.num_tokens for vote in votes),
        **_judge_facts(version),
        seconds=round(seconds, 4),
    )


def _judge_facts(version: JudgeVersion) -> dict[str, Any]:
    judge = version.judge
    assert isinstance(judge, GenerativeJudge)
    return {
        "judge": judge.name,
        "weights": version.weights or None,
        "template_hash": judge.template.hash,
        "judge_hash": version.hash,
    }


def rewards_response(result: GroupRewards, version: JudgeVersion, num: int, seconds: float) -> RewardsResponse:
    """Return the response about ``num`` responses of a group; an anchor beyond them is left out."""
    judgments = [match.judgment for match in result.matches if match.judgment is not None]
    tiers = [[n for n in tier if n < num] for tier in result.ranking.tiers]
    return RewardsResponse(
        rewards=result.rewards,
        deviations=result.deviations,
        tiers=[tier for tier in tiers if tier],
        matches=[_match_result(match, num) for match in result.matches],
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


def template_labels(text: str) -> tuple[str, str]:
    """Return what a template's text calls the two responses, as ``("Answer 1", "Answer 2")``; "Response 1" and "Response 2"
    where it gives them no such name."""
    names = {slot: name for name, slot in _LABEL.findall(text)}
    return names.get("first", "Response 1"), names.get("second", "Response 2")


def status_response(
    queue: JudgeQueue,
    collector: VoteCollector,
    judge: GenerativeJudge,
    groups: GroupBuffer[Any, Any],
    signs: AnswerSigns,
) -> StatusResponse:
    """Return what the key that asks may see: of the queue and of the open groups its own, and how the engine is."""
    tenant = TENANT.get()
    record = queue.tenants[tenant]
    latencies = sorted(ms for _, ms, _ in record.recent)
    return StatusResponse(
        ready=queue.ready,
        failing=queue.failing,
        version=queue.versions.newest.number,
        weights=queue.versions.newest.weights or None,
        num_draining=queue.versions.num_draining,
        loading=queue.versions.loading,
        load_error=queue.versions.load_error,
        waiting=queue.num_waiting_of(tenant),
        max_waiting=queue.max_waiting,
        group_members_waiting=groups.num_waiting_of(tenant),
        judge=judge.name,
        template=judge.template.name,
        weighs=collector.has_probabilities,
        policy="weighted" if isinstance(judge, ProbabilityJudge) else "majority",
        labels=template_labels(judge.template.text),
        batch_seconds=round(queue.batch_seconds, 4),
        signs=signs.present(tenant),
        answers=signs.measures(tenant),
        counts={name: record.counts[name] for name in COUNTS},
        median_ms=statistics.median(latencies) if latencies else None,
        p95_ms=latencies[int(0.95 * len(latencies))] if latencies else None,
        recent=[LatencySample(at=at, ms=ms, waiting=waiting) for at, ms, waiting in record.recent],
    )
