"""What a report says of a panel's members: each by itself, and where they disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.benchmarks.confidence import LEAST_VOTES, calibrate
from rewardlab.benchmarks.report_model import Confidence, MemberScores, PanelScores
from rewardlab.data.votes import num_failed
from rewardlab.judging.judge import JudgeKind
from rewardlab.metrics.accuracy import Labeled, pair_score
from rewardlab.metrics.intervals import mean_estimate
from rewardlab.types import BOTH_ORDERS, Judgment
from rewardlab.verdicts.panel import member_judgments
from rewardlab.verdicts.votes import in_order


def panel_scores(panel: JudgeKind, items: Sequence[Labeled], clusters: Sequence[str]) -> PanelScores:
    """Return the scores of each member and how often members differ, from the panel's judgments."""
    judged = [member_judgments(item.judgment.votes) for item in items]
    winners = [{voice.outcome.winner for voice in of_pair.values()} - {None} for of_pair in judged]
    several = [n for n, of_pair in enumerate(judged) if sum(voice.outcome.winner is not None for voice in of_pair.values()) > 1]
    members = tuple(
        _member_scores(member.spec, [of_pair[member.spec] for of_pair in judged], items, clusters) for member in panel.members
    )
    differ = sum(len(winners[n]) > 1 for n in several) / len(several) if several else None
    return PanelScores("log-odds" if panel.name.startswith("pool:") else "majority", differ, members)


def panel_confidence(items: Sequence[Labeled], clusters: Sequence[str]) -> dict[str, Confidence]:
    """Return the calibration of the panel's share for the response that it names; see ``confidence.calibrate``."""
    if any(len(in_order(item.judgment.votes, order)) < LEAST_VOTES for item in items for order in BOTH_ORDERS):
        return {}
    return {"vote_share": calibrate(items, [item.judgment.share_0 for item in items], clusters)}


def _member_scores(name: str, judged: Sequence[Judgment], items: Sequence[Labeled], clusters: Sequence[str]) -> MemberScores:
    decided = [
        (voice.outcome.winner, item.judgment.outcome.winner)
        for voice, item in zip(judged, items, strict=True)
        if voice.outcome.winner is not None and item.judgment.outcome.winner is not None
    ]
    trials = [pair_score(replace(item, judgment=voice)) for voice, item in zip(judged, items, strict=True)]
    right = [float(voice.outcome.winner == item.preferred) for voice, item in zip(judged, items, strict=True)]
    return MemberScores(
        judge=name,
        trials=mean_estimate(trials, clusters),
        accuracy=mean_estimate(right, clusters),
        agreement=sum(mine == panels for mine, panels in decided) / len(decided) if decided else None,
        abstained=sum(voice.share_0 is None for voice in judged),
        failed_votes=sum(num_failed(voice.votes) for voice in judged),
    )
