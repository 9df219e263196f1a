"""Judgments and rewards as the native API tells them."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.serving.groups import GroupRewards, JudgedMatch
from rewardlab.serving.queue import COUNTS, Batcher
from rewardlab.serving.schemas import JudgeResponse, Moment, RewardsResponse, Status, WireMatch, WireVote
from rewardlab.serving.voting import Asker
from rewardlab.types import Judgment, Vote


def wire_vote(vote: Vote) -> WireVote:
    return WireVote(
        order=vote.order.value,
        status=vote.verdict.status.value,
        winner=0 if vote.winner == 0 else 1 if vote.winner == 1 else None,
        text=vote.completion.text,
        num_tokens=vote.completion.num_tokens,
        p_first_shown=None if vote.margin is None else 0.5 + math.tanh(vote.margin / 2) / 2,
        error=vote.completion.error,
    )


def answer_of(judged: Judgment, judge: GenerativeJudge, seconds: float) -> JudgeResponse:
    votes = [wire_vote(vote) for vote in judged.votes]
    return JudgeResponse(
        p_first_better=judged.share_0,
        outcome=judged.outcome.value,
        num_valid=sum(vote.winner is not None for vote in votes),
        votes=votes,
        num_tokens=sum(vote.num_tokens for vote in votes),
        judge=judge.name,
        template_hash=judge.template.hash,
        seconds=round(seconds, 4),
    )


def rewards_of(found: GroupRewards, judge: GenerativeJudge, num: int, seconds: float) -> RewardsResponse:
    """The answer about ``num`` responses; an anchor beyond them has no place in it."""
    judged = [match.judgment for match in found.matches if match.judgment is not None]
    return RewardsResponse(
        rewards=found.rewards,
        deviations=found.deviations,
        tiers=[kept for tier in found.ranking.tiers if (kept := [n for n in tier if n < num])],
        matches=[_wire_match(match, num) for match in found.matches],
        num_failed=sum(match.judgment is None or match.judgment.share_0 is None for match in found.matches),
        num_tokens=sum(vote.completion.num_tokens for one in judged for vote in one.votes),
        judge=judge.name,
        template_hash=judge.template.hash,
        seconds=round(seconds, 4),
    )


def _wire_match(match: JudgedMatch, num: int) -> WireMatch:
    judged = match.judgment
    statuses = Counter(vote.verdict.status.value for vote in judged.votes) if judged else Counter()
    return WireMatch(
        first=match.first,
        second=match.second if match.second < num else None,
        share_first=judged.share_0 if judged else None,
        outcome=judged.outcome.value if judged else None,
        statuses=dict(statuses),
        error=match.error,
    )


def status_of(batcher: Batcher, asker: Asker, judge: GenerativeJudge) -> Status:
    took = sorted(ms for _, ms, _ in batcher.recent)
    return Status(
        ready=batcher.ready,
        failing=batcher.failing,
        waiting=batcher.num_waiting,
        max_waiting=batcher.max_waiting,
        judge=judge.name,
        template=judge.template.name,
        weighs=asker.weighs,
        batch_seconds=round(batcher.batch_seconds, 4),
        counts={name: batcher.counts[name] for name in COUNTS},
        median_ms=statistics.median(took) if took else None,
        p95_ms=took[int(0.95 * len(took))] if took else None,
        recent=[Moment(at=at, ms=ms, waiting=waiting) for at, ms, waiting in batcher.recent],
    )
