"""What a benchmark reports. Pure functions of votes and labels; numpy for the resampling only.

The unit is the *trial*: one pair shown in one order, judged by the majority of K votes. A pair shown in both orders gives
two trials. Every trial stays in the denominator: an invalid or tied one is not right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rewardlab.types import BOTH_ORDERS, Choice, Judgment, Outcome, VerdictStatus, Vote
from rewardlab.votes import in_order, majority

VALID = (VerdictStatus.OK, VerdictStatus.TIE)


@dataclass(frozen=True)
class Labeled:
    """A judgment beside the truth: ``preferred`` is the index of the better response, ``group`` the benchmark's category."""

    judgment: Judgment
    preferred: int
    group: str


@lru_cache(maxsize=65536)
def vote_accuracy(num_right: int, num_wrong: int, num_votes: int, k: int) -> float:
    """Probability that the majority of ``k`` votes, drawn without replacement from a pool of ``num_votes``, is right.

    ``num_votes - num_right - num_wrong`` votes are invalid or tied and count for neither side. Exact (multivariate
    hypergeometric), so accuracy@K has no shuffling noise. Raises ValueError unless 1 <= k <= num_votes.
    """
    if not 1 <= k <= num_votes:
        raise ValueError(f"k must be between 1 and the {num_votes} votes of the pool, got {k}")
    neither = num_votes - num_right - num_wrong
    ways = sum(
        math.comb(num_right, i) * math.comb(num_wrong, j) * math.comb(neither, k - i - j)
        for i in range(1, min(num_right, k) + 1)
        for j in range(0, min(num_wrong, k - i, i - 1) + 1)
    )
    return ways / math.comb(num_votes, k)


def any_correct(num_right: int, num_votes: int, k: int) -> float:
    """Probability that at least one of ``k`` votes from the pool is right. A coin scores 1 - 2**-k: never report it alone."""
    return 1 - math.comb(num_votes - num_right, k) / math.comb(num_votes, k)


def _trials(item: Labeled) -> list[tuple[Vote, ...]]:
    split = [in_order(item.judgment.votes, order) for order in BOTH_ORDERS]
    return [votes for votes in split if votes]


def _tally(votes: Sequence[Vote], preferred: int) -> tuple[int, int, int]:
    winners = [vote.winner for vote in votes]
    return winners.count(preferred), winners.count(1 - preferred), len(winners)


def pair_score(item: Labeled, k: int | None = None) -> float:
    """Accuracy of one pair in 0..1: the mean over its trials of the chance that the majority of ``k`` votes is right.

    ``k=None`` uses all votes of each trial. A pair without any vote scores 0.
    """
    scores = []
    for votes in _trials(item):
        right, wrong, total = _tally(votes, item.preferred)
        scores.append(vote_accuracy(right, wrong, total, total if k is None else k))
    return sum(scores) / len(scores) if scores else 0.0


def any_correct_score(item: Labeled, k: int) -> float:
    """Mean over the trials of :func:`any_correct`."""
    tallies = [_tally(votes, item.preferred) for votes in _trials(item)]
    return sum(any_correct(right, total, k) for right, _, total in tallies) / len(tallies) if tallies else 0.0


def smallest_pool(items: Sequence[Labeled]) -> int:
    """Votes of the trial that has fewest: the largest K every trial can answer."""
    return min((len(votes) for item in items for votes in _trials(item)), default=0)


def mean_interval(
    scores: Sequence[float], clusters: Sequence[str] | None = None, *, seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean over pairs, or over clusters of pairs that share a prompt.

    ``scores`` are per pair (0..1, or differences in -1..1). Scores that are all equal leave nothing to resample; for 0 or 1
    the Wilson bound of n trials is used, so that a perfect score on few pairs keeps an honest width. Empty: (nan, nan).
    """
    values = np.asarray(scores, dtype=float)
    if values.size == 0:
        return math.nan, math.nan
    if np.ptp(values) == 0 and values[0] in (0.0, 1.0):
        slack = 3.8416 / (values.size + 3.8416)
        return (0.0, slack) if values[0] == 0 else (1 - slack, 1.0)
    names = np.arange(values.size) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums, counts = np.bincount(names, weights=values), np.bincount(names)
    draws = np.random.default_rng(seed).integers(0, len(sums), size=(resamples, len(sums)))
    means = sums[draws].sum(1) / counts[draws].sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def micro(items: Sequence[Labeled], k: int | None = None) -> float:
    """Mean score over all pairs; nan where there are none."""
    return float(np.mean([pair_score(item, k) for item in items])) if items else math.nan


def by_group(items: Sequence[Labeled]) -> dict[str, list[Labeled]]:
    groups: dict[str, list[Labeled]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return dict(sorted(groups.items()))


def macro(items: Sequence[Labeled], k: int | None = None) -> float:
    """Unweighted mean of the groups' micro accuracies; nan where there are none."""
    groups = by_group(items)
    return float(np.mean([micro(group, k) for group in groups.values()])) if groups else math.nan


def _all_votes(items: Sequence[Labeled]) -> list[Vote]:
    return [vote for item in items for vote in item.judgment.votes]


def status_counts(items: Sequence[Labeled]) -> dict[str, int]:
    """Votes by status, every status named."""
    votes = _all_votes(items)
    return {status.value: sum(vote.verdict.status is status for vote in votes) for status in VerdictStatus}


def invalid_rate(items: Sequence[Labeled]) -> float:
    """Share of votes without a readable verdict (a tie that a judge states is readable); nan without votes."""
    votes = _all_votes(items)
    return sum(vote.verdict.status not in VALID for vote in votes) / len(votes) if votes else math.nan


def position_lean(items: Sequence[Labeled]) -> float | None:
    """Share of valid verdicts for the response shown first, minus one half: -0.5..0.5, 0 without lean; None without any."""
    choices = [vote.verdict.choice for vote in _all_votes(items) if vote.verdict.choice is not None]
    return choices.count(Choice.FIRST) / len(choices) - 0.5 if choices else None


def swap_consistency(items: Sequence[Labeled]) -> float | None:
    """Share of pairs, of those shown in both orders, whose two majorities name the same response.

    A tie or an invalid majority in either order is not consistent. None where no pair was shown in both orders.
    """
    kept = [_trials(item) for item in items]
    both = [trials for trials in kept if len(trials) == 2]
    if not both:
        return None
    outcomes = [(majority(first), majority(second)) for first, second in both]
    named = (Outcome.RESPONSE_0, Outcome.RESPONSE_1)
    return sum(a == b and a in named for a, b in outcomes) / len(outcomes)


def paired_difference(
    before: Mapping[str, float], after: Mapping[str, float], *, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Mean of ``after - before`` over the pairs and its 95 % bootstrap interval. Raises ValueError unless both name the
    same pairs."""
    if before.keys() != after.keys():
        raise ValueError("a paired comparison needs the same pairs on both sides")
    differences = [after[name] - before[name] for name in before]
    low, high = mean_interval(differences, seed=seed)
    if not any(differences):  # nothing to resample: as far as n pairs can tell, to either side
        low = -high
    return float(np.mean(differences)), (low, high)
