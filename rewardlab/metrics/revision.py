"""The effect of a judge's self-verification: judgments corrected, judgments lost, net gain.

Pure. Fractions are in 0..1; intervals are 95 %, over clusters of votes that share a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.metrics.intervals import (
    AccuracyEstimate,
    DifferenceEstimate,
    Interval,
    difference_interval,
    mean_estimate,
    mean_interval,
)


@dataclass(frozen=True)
class VerifiedVote:
    """A judgment (right or not), what its verification says of it (None: neither that it is correct nor that it is wrong, or
    it was cut off), whether it was revised, and whether the last judgment is right. One without a verdict is not right."""

    first_right: bool
    says_correct: bool | None
    revised: bool
    last_right: bool


@dataclass(frozen=True)
class ShareEstimate:
    """A ``share`` (0..1) of ``n`` votes or judgments, and its interval."""

    n: int
    share: float
    interval: Interval


@dataclass(frozen=True)
class RevisionScores:
    """The first and the last judgment of ``n`` verified votes. ``net_gain`` is the accuracy of the last less that of the first,
    vote by vote. ``lost``: share of right first judgments whose last is wrong; ``mended``: of wrong ones whose last is right.
    ``right_confirmed``: share of right ones that the verification calls correct; ``wrong_noticed``: of wrong ones that it calls
    wrong. Each of the four is None where there is no such judgment. ``revised`` is a share of all, and so is ``unclear``: of
    judgments that no verification calls correct or wrong, also since they were cut off and not verified."""

    n: int
    first: AccuracyEstimate
    last: AccuracyEstimate
    net_gain: DifferenceEstimate
    lost: ShareEstimate | None
    mended: ShareEstimate | None
    right_confirmed: ShareEstimate | None
    wrong_noticed: ShareEstimate | None
    revised: float
    unclear: float


def revision_scores(votes: Sequence[VerifiedVote], clusters: Sequence[str]) -> RevisionScores:
    """Return the scores of at least one vote, of as many ``clusters``. Raise ValueError without one."""
    if not votes:
        raise ValueError("expected at least one verified vote, got none")
    gains = [float(vote.last_right) - float(vote.first_right) for vote in votes]
    right = [n for n, vote in enumerate(votes) if vote.first_right]
    wrong = [n for n, vote in enumerate(votes) if not vote.first_right]

    def share(places: Sequence[int], flags: Sequence[bool]) -> ShareEstimate | None:
        if not places:
            return None
        values = [float(flags[n]) for n in places]
        return ShareEstimate(len(values), sum(values) / len(values), mean_interval(values, [clusters[n] for n in places]))

    return RevisionScores(
        n=len(votes),
        first=mean_estimate([float(vote.first_right) for vote in votes], clusters),
        last=mean_estimate([float(vote.last_right) for vote in votes], clusters),
        net_gain=DifferenceEstimate(sum(gains) / len(gains), difference_interval(gains, clusters)),
        lost=share(right, [not vote.last_right for vote in votes]),
        mended=share(wrong, [vote.last_right for vote in votes]),
        right_confirmed=share(right, [vote.says_correct is True for vote in votes]),
        wrong_noticed=share(wrong, [vote.says_correct is False for vote in votes]),
        revised=sum(vote.revised for vote in votes) / len(votes),
        unclear=sum(vote.says_correct is None for vote in votes) / len(votes),
    )
