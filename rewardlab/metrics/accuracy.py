"""Metrics of benchmarks: pure functions of votes and labels.

The unit is the *trial*: one pair in one order, judged by the majority of K votes; a pair in both orders has two trials. More
than half of all votes decide a trial. An undecided trial stays in the denominator and is not right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from rewardlab.types import BOTH_ORDERS, Choice, Judgment, VerdictStatus, Vote
from rewardlab.verdicts.votes import VALID, in_order, majority, majority_of_valid

MOST_IN_INTEGERS = 48  # votes in a pool; larger pools use floats, as the integers get too many digits
OUTCOME = "outcome"  # rule of a verdict that is known to be right or wrong, without a position
LEAST_BOTH = 0.95  # fraction of pairs with both orders that a metric of both orders needs


@dataclass(frozen=True)
class Labeled:
    """A judgment and its label: ``preferred`` is the index of the better response, ``group`` the benchmark's category."""

    judgment: Judgment
    preferred: int
    group: str

    @cached_property
    def tallies(self) -> tuple[tuple[int, int, int], ...]:
        """Return the (right, wrong, all) votes of each trial."""
        return tuple(_tally(votes, self.preferred) for votes in _trials(self))


@lru_cache(maxsize=65536)
def vote_accuracy(num_right: int, num_votes: int, k: int) -> float:
    """Return the probability that more than half of ``k`` votes from a pool of ``num_votes``, without replacement, are right.

    Exact (hypergeometric), so accuracy@K has no shuffling noise. Raise ValueError unless 1 <= k <= num_votes.
    """
    if not 1 <= k <= num_votes:
        raise ValueError(f"k must be between 1 and the {num_votes} votes of the pool, got {k}")
    if num_votes > MOST_IN_INTEGERS:
        return float(right_probabilities(num_right, num_votes, k)[k // 2 + 1 :].sum())
    return sum(right_counts(num_right, num_votes, k)[k // 2 + 1 :]) / math.comb(num_votes, k)


@lru_cache(maxsize=65536)
def right_counts(num_right: int, num_votes: int, k: int) -> tuple[int, ...]:
    """Return [k + 1]: how many of the C(num_votes, k) samples of ``k`` votes have 0..k right ones."""
    return tuple(math.comb(num_right, right) * math.comb(num_votes - num_right, k - right) for right in range(k + 1))


@lru_cache(maxsize=65536)
def balanced_accuracy(first: tuple[int, int], second: tuple[int, int], k: int) -> float:
    """Return the probability that more than half of 2 ``k`` votes, ``k`` of each order, are right, given (right, all) of each
    order's pool. Exact; an even split is not right."""
    if max(first[1], second[1]) > MOST_IN_INTEGERS:
        more = np.cumsum(right_probabilities(*second, k)[::-1])  # [n]: that at least k - n are right
        return float(right_probabilities(*first, k)[1:] @ more[:-1])
    ways, others = right_counts(*first, k), right_counts(*second, k)
    ahead = sum(n * sum(others[k - right + 1 :]) for right, n in enumerate(ways) if right)
    return ahead / (math.comb(first[1], k) * math.comb(second[1], k))


@lru_cache(maxsize=4096)  # one K at a time, for both curves
def right_probabilities(num_right: int, num_votes: int, k: int) -> np.ndarray:
    """Return [k + 1] probabilities of 0..k right votes in a sample of ``k``: :func:`right_counts` in floats.

    By logarithms of factorials in extended precision: within 1e-12 of the integers for pools of thousands, and much faster.
    """
    logs, num_other = _log_factorials(num_votes), num_votes - num_right
    right = np.arange(max(0, k - num_other), min(num_right, k) + 1)
    ways = logs[num_right] - logs[right] - logs[num_right - right]
    ways += logs[num_other] - logs[k - right] - logs[num_other - k + right]
    table = np.zeros(k + 1)
    table[right] = np.exp((ways - (logs[num_votes] - logs[k] - logs[num_votes - k])).astype(float))
    return table


@lru_cache(maxsize=1)
def _factorial_table(size: int) -> np.ndarray:
    return np.cumsum(np.log(np.arange(size, dtype=np.longdouble).clip(1)))


def _log_factorials(most: int) -> np.ndarray:
    """Return ln 0!, ln 1!, ... up to ``most`` or more: tables have sizes of powers of two, to be shared by pools."""
    return _factorial_table(1 << max(10, most.bit_length()))


def any_correct(num_right: int, num_votes: int, k: int) -> float:
    """Return the probability that any of ``k`` votes is right. A coin scores 1 - 2**-k: never report this metric alone."""
    if num_votes > MOST_IN_INTEGERS:
        logs, wrong = _log_factorials(num_votes), num_votes - num_right
        if wrong < k:
            return 1.0
        return 1 - math.exp(float(logs[wrong] - logs[wrong - k] - logs[num_votes] + logs[num_votes - k]))
    return 1 - math.comb(num_votes - num_right, k) / math.comb(num_votes, k)


def _trials(item: Labeled) -> list[tuple[Vote, ...]]:
    split = [in_order(item.judgment.votes, order) for order in BOTH_ORDERS]
    return [votes for votes in split if votes]


def _tally(votes: Sequence[Vote], preferred: int) -> tuple[int, int, int]:
    winners = [vote.winner for vote in votes]
    return winners.count(preferred), winners.count(1 - preferred), len(winners)


def score_of(tallies: Sequence[tuple[int, int, int]], k: int | None = None) -> float:
    """Return :func:`pair_score` of a pair's tallies."""
    scores = [vote_accuracy(right, total, total if k is None else k) for right, _, total in tallies]
    return sum(scores) / len(scores) if scores else 0.0


def pair_score(item: Labeled, k: int | None = None) -> float:
    """Return the accuracy of one pair in 0..1: the mean over its trials of the probability that the majority of ``k`` votes
    (None: all of the trial) is right. A pair without votes scores 0."""
    return score_of(item.tallies, k)


def undecided_score(item: Labeled) -> float:
    """Return the fraction of a pair's trials in which neither response has more than half of all votes."""
    winners = [majority(votes).winner for votes in _trials(item)]
    return winners.count(None) / len(winners) if winners else 1.0


def valid_majority_scores(item: Labeled) -> tuple[float, float]:
    """Return the fractions of a pair's trials that the majority of the *valid* votes judges right, and that it decides."""
    winners = [majority_of_valid(votes).winner for votes in _trials(item)]
    number = max(1, len(winners))
    return winners.count(item.preferred) / number, 1 - winners.count(None) / number if winners else 0.0


def any_correct_score(tallies: Sequence[tuple[int, int, int]], k: int) -> float:
    """Return the mean over a pair's trials of :func:`any_correct`."""
    return sum(any_correct(right, total, k) for right, _, total in tallies) / len(tallies) if tallies else 0.0


def smallest_pool(items: Sequence[Labeled]) -> int:
    """Return the votes of the trial with fewest: the largest K of every trial."""
    return min((len(votes) for item in items for votes in _trials(item)), default=0)


def micro(items: Sequence[Labeled], k: int | None = None) -> float:
    """Return the mean score over all pairs; nan without pairs."""
    return float(np.mean([pair_score(item, k) for item in items])) if items else math.nan


def by_group(items: Sequence[Labeled]) -> dict[str, list[Labeled]]:
    groups: dict[str, list[Labeled]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return dict(sorted(groups.items()))


def macro(items: Sequence[Labeled], k: int | None = None) -> float:
    """Return the unweighted mean of the groups' micro accuracies; nan without pairs."""
    groups = by_group(items)
    return float(np.mean([micro(group, k) for group in groups.values()])) if groups else math.nan


def _all_votes(items: Sequence[Labeled]) -> list[Vote]:
    return [vote for item in items for vote in item.judgment.votes]


def status_counts(items: Sequence[Labeled]) -> dict[str, int]:
    """Return the number of votes of every status."""
    counts = Counter(vote.verdict.status for item in items for vote in item.judgment.votes)
    return {status.value: counts[status] for status in VerdictStatus}


def invalid_rate(items: Sequence[Labeled]) -> float:
    """Return the fraction of votes without a valid verdict (a stated tie is valid); nan without votes."""
    votes = _all_votes(items)
    return sum(vote.verdict.status not in VALID for vote in votes) / len(votes) if votes else math.nan


def position_bias(items: Sequence[Labeled]) -> float | None:
    """Return the fraction of valid verdicts for the response shown first minus one half, -0.5..0.5; None without any. Outcomes
    without a position do not count."""
    verdicts = [vote.verdict for vote in _all_votes(items) if vote.verdict.rule != OUTCOME]
    choices = [verdict.choice for verdict in verdicts if verdict.choice is not None]
    return choices.count(Choice.FIRST) / len(choices) - 0.5 if choices else None


def length_bias(items: Sequence[Labeled], longer: Sequence[int | None]) -> float | None:
    """Return how much more often the longer response wins than it is the better one: -1..1, above 0 if a judge favours length.

    The mean over pairs of the fraction of valid verdicts for the longer response, minus the fraction of pairs whose longer
    response is better. ``longer`` is its index; pairs of equal lengths (None) or without a valid verdict are left out. None if
    no pair is left.
    """
    biases = [bias for bias in pair_length_biases(items, longer) if bias is not None]
    return sum(biases) / len(biases) if biases else None


def pair_length_biases(items: Sequence[Labeled], longer: Sequence[int | None]) -> list[float | None]:
    """Return each pair's term of :func:`length_bias` (-1..1); None if it is left out."""
    biases: list[float | None] = []
    for item, index in zip(items, longer, strict=True):
        winners = [vote.winner for vote in item.judgment.votes if vote.winner is not None]
        if index is None or not winners:
            biases.append(None)
        else:
            biases.append(winners.count(index) / len(winners) - (item.preferred == index))
    return biases


def vote_counts(item: Labeled) -> tuple[float, float, float, float]:
    """Return a pair's counts: valid choices, half the excess of those for the first response (-n/2..n/2), invalid votes, all
    votes. The second over the first is :func:`position_bias`, the third over the fourth :func:`invalid_rate`."""
    votes = item.judgment.votes
    choices = [vote.verdict.choice for vote in votes if vote.verdict.choice is not None and vote.verdict.rule != OUTCOME]
    unread = sum(vote.verdict.status not in VALID for vote in votes)
    return len(choices), choices.count(Choice.FIRST) - len(choices) / 2, unread, len(votes)


def pair_swaps(items: Sequence[Labeled]) -> list[bool | None]:
    """Return whether the majorities of both orders of each pair name the same response; None for a pair in one order."""
    swaps: list[bool | None] = []
    for item in items:
        outcomes = [majority(votes).winner for votes in _trials(item)]
        swaps.append(outcomes[0] == outcomes[1] and outcomes[0] is not None if len(outcomes) == 2 else None)
    return swaps


def swap_consistency(items: Sequence[Labeled]) -> float | None:
    """Return the fraction of pairs, of those in both orders, whose majorities name the same response. An order without a
    majority of all votes is inconsistent. None if less than 95 % of the pairs have both orders."""
    swaps = [alike for alike in pair_swaps(items) if alike is not None]
    return sum(swaps) / len(swaps) if swaps and len(swaps) >= LEAST_BOTH * len(items) else None
