"""What a report says of a judge that verifies itself: its first judgments beside its last, from the turns of its votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.metrics.accuracy import Labeled
from rewardlab.metrics.revision import RevisionScores, ShareEstimate, VerifiedVote, revision_scores
from rewardlab.prompts.verification import read_verification
from rewardlab.reporting.tables import percent, signed, with_interval
from rewardlab.types import Vote
from rewardlab.verdicts.parse import parse_verdict

REVISION = ("self-verification", "share %, 95 % interval", "judgments")
_JUDGED, _REVISED = 2, 3  # turns of a judgment that stands, and of a revised one


def revision_of(items: Sequence[Labeled], clusters: Sequence[str], verdict_format: str) -> RevisionScores | None:
    """Return the scores of all votes; None where none was verified. A vote that was not verified, for it was cut off or failed,
    has one judgment, the first and the last."""
    votes = [(vote, item, cluster) for item, cluster in zip(items, clusters, strict=True) for vote in item.judgment.votes]
    if not any(vote.completion.turns for vote, _, _ in votes):
        return None
    verified = [verified_vote(vote, item.preferred, verdict_format) for vote, item, _ in votes]
    return revision_scores(verified, [cluster for _, _, cluster in votes])


def verified_vote(vote: Vote, preferred: int, verdict_format: str) -> VerifiedVote:
    """Return what the turns of a vote come to, where response ``preferred`` is better."""
    turns, last_right = vote.completion.turns, vote.winner == preferred
    if len(turns) < _JUDGED:
        return VerifiedVote(last_right, None, revised=False, last_right=last_right)
    first = replace(vote, verdict=parse_verdict(turns[0], verdict_format))
    revised, says_correct = len(turns) == _REVISED, read_verification(turns[1])
    if says_correct is False and not revised:  # a verification that was cut off is none
        says_correct = None
    return VerifiedVote(first.winner == preferred, says_correct, revised, last_right)


def revision_sentence(scores: RevisionScores) -> str:
    """Return what revising gains, and how often it is done."""
    gain, (low, high) = scores.net_gain.difference, scores.net_gain.interval
    verdict = "gains" if low > 0 else "loses" if high < 0 else "neither gains nor loses for sure"
    return (
        f"The judge verifies its judgments and revises {percent(scores.revised)} % of them: that {verdict}, "
        f"{signed(gain)} points [{signed(low)}, {signed(high)}] of accuracy. {percent(scores.unclear)} % of judgments "
        "have no verification that says whether they are correct or wrong."
    )


def revision_rows(scores: RevisionScores) -> list[tuple[str, str, str]]:
    """Return (figure, share in percent with its interval, number of judgments)."""
    n = f"{scores.n:,}"
    shares = {
        "right judgments that are lost": scores.lost,
        "wrong judgments that are mended": scores.mended,
        "right judgments that are called correct": scores.right_confirmed,
        "wrong judgments that are called wrong": scores.wrong_noticed,
    }
    return [
        ("first judgment right", with_interval(scores.first.accuracy, scores.first.interval), n),
        ("last judgment right", with_interval(scores.last.accuracy, scores.last.interval), n),
        *((name, *_cells(share)) for name, share in shares.items()),
    ]


def _cells(estimate: ShareEstimate | None) -> tuple[str, str]:
    return ("–", "0") if estimate is None else (with_interval(estimate.share, estimate.interval), f"{estimate.n:,}")
