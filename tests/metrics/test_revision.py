"""What self-verification does to judgments, counted by hand."""

from __future__ import annotations

import pytest

from rewardlab.metrics.intervals import mean_interval, paired_difference
from rewardlab.metrics.revision import VerifiedVote, revision_scores

RIGHT_KEPT = VerifiedVote(True, True, revised=False, last_right=True)
RIGHT_LOST = VerifiedVote(True, False, revised=True, last_right=False)
WRONG_KEPT = VerifiedVote(False, True, revised=False, last_right=False)
WRONG_MENDED = VerifiedVote(False, False, revised=True, last_right=True)
WRONG_AGAIN = VerifiedVote(False, False, revised=True, last_right=False)
UNCLEAR = VerifiedVote(True, None, revised=False, last_right=True)


def test_by_hand() -> None:
    """Six of ten judgments are right; one of them is lost, two of the four wrong ones are mended: one more is right."""
    votes = [*[RIGHT_KEPT] * 4, RIGHT_LOST, UNCLEAR, WRONG_KEPT, WRONG_MENDED, WRONG_MENDED, WRONG_AGAIN]
    scores = revision_scores(votes, [str(n) for n in range(10)])
    assert (scores.n, scores.revised, scores.unclear) == (10, 0.4, 0.1)
    assert (scores.first.accuracy, scores.last.accuracy) == (0.6, 0.7)
    assert scores.net_gain.difference == pytest.approx(0.1)
    before = {str(n): float(vote.first_right) for n, vote in enumerate(votes)}
    after = {str(n): float(vote.last_right) for n, vote in enumerate(votes)}
    assert scores.net_gain.interval == paired_difference(before, after)[1]
    shares = {name: getattr(scores, name) for name in ("lost", "mended", "right_confirmed", "wrong_noticed")}
    assert {name: (share.share, share.n) for name, share in shares.items()} == {
        "lost": (pytest.approx(1 / 6), 6),
        "mended": (0.5, 4),
        "right_confirmed": (pytest.approx(4 / 6), 6),
        "wrong_noticed": (0.75, 4),
    }
    assert scores.mended is not None
    assert scores.mended.interval == mean_interval([0.0, 1.0, 1.0, 0.0])


def test_votes_of_one_prompt_are_no_independent_evidence() -> None:
    votes = [RIGHT_LOST, WRONG_MENDED, WRONG_MENDED, RIGHT_KEPT] * 5
    apart = revision_scores(votes, [str(n) for n in range(20)]).net_gain.interval
    together = revision_scores(sorted(votes, key=repr), [str(n // 5) for n in range(20)]).net_gain.interval
    assert together[1] - together[0] > apart[1] - apart[0]


def test_nothing_to_lose_or_to_mend() -> None:
    scores = revision_scores([RIGHT_KEPT] * 5, list("abcde"))
    assert scores.mended is scores.wrong_noticed is None
    assert scores.lost is not None
    assert scores.lost.share == 0
    with pytest.raises(ValueError, match="at least one"):
        revision_scores([], [])
