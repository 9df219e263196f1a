"""Votes one after another until the outcome is settled: the easy pairs cost two samples, the hard ones all of them.

What is settled is the majority of a fixed number of votes, not the truth: with a budget of 16 the pair is judged as by a
majority of 16, but for a chosen probability of stopping too early. A vote that was asked and has no verdict counts for neither
response; one that is not asked any more, because the outcome is settled, is no failure and does not count. The two orders take
turns, so that a position bias adds to both sides; a pair never stops after an odd number of votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, exp, lgamma

from rewardlab.types import BOTH_ORDERS, Outcome, Vote
from rewardlab.verdicts.votes import in_order, majority

MOST_IN_INTEGERS = 64  # votes in all: of more, a sum of floats, for integers have too many digits


@lru_cache(maxsize=131072)
def overturn_probability(lead: int, trail: int, left: int) -> float:
    """Return the probability (0..1) that ``left`` more votes take away a lead of ``lead`` to ``trail``, all votes that are not
    for the leader; an even end counts as taken away.

    The share of votes for the leader is unknown, uniform before any vote, so that what comes is beta-binomial (Laplace's rule
    of succession and its extension). Raise ValueError unless lead >= trail >= 0 and left >= 0.
    """
    if not lead >= trail >= 0 or left < 0:
        raise ValueError(f"expected lead >= trail >= 0 and left >= 0, got {lead}, {trail}, {left}")
    most = (trail + left - lead) // 2  # of the votes to come for the leader, that take the lead away
    if most < 0:
        return 0.0
    # P(j of left for the leader) = C(left, j) B(lead + j + 1, trail + left - j + 1) / B(lead + 1, trail + 1)
    if lead + trail + left > MOST_IN_INTEGERS:
        return _overturn_in_floats(lead, trail, left, most)
    total = comb(lead + trail + left + 1, left)
    return sum(comb(lead + j, j) * comb(trail + left - j, left - j) for j in range(most + 1)) / total


def _overturn_in_floats(lead: int, trail: int, left: int, most: int) -> float:
    """:func:`overturn_probability`, summed from its largest term downwards, each from the one above; to about 1e-11."""
    log_term = _log_comb(lead + most, most) + _log_comb(trail + left - most, left - most)
    log_term -= _log_comb(lead + trail + left + 1, left)
    term = total = exp(log_term)
    for j in range(most, 0, -1):
        term *= j / (lead + j) * ((trail + left - j + 1) / (left - j + 1))
        total += term
        if term < 1e-18 * total:
            break
    return total


def _log_comb(num: int, drawn: int) -> float:
    """Return the natural logarithm of the number of ways to draw ``drawn`` of ``num``."""
    return lgamma(num + 1) - lgamma(drawn + 1) - lgamma(num - drawn + 1)


def is_settled(for_0: int, for_1: int, neither: int, left: int, error: float) -> bool:
    """Return whether the majority of these votes and ``left`` more is known but for a probability of ``error`` (0..1).

    A winner needs more than half of all of them; ``neither`` votes name no response. If neither response has more than half of
    the votes so far, it is settled only once neither can win.
    """
    taken, lead = for_0 + for_1 + neither, max(for_0, for_1)
    if 2 * lead > taken:
        return overturn_probability(lead, taken - lead, left) <= error
    return 2 * (lead + left) <= taken + left


def stopping_error(num_votes: int, error: float, share: float = 0.5) -> float:
    """Return how often (0..1) stopping by :func:`is_settled` ends on another outcome than all ``num_votes`` (an even number),
    of a pair each of whose votes names response 0 with probability ``share``; exact, of valid votes alone.

    ``error`` holds on average over pairs of all shares. Of a pair whose votes are even, 0.5, it is exceeded.
    """
    reached, total = {0: 1.0}, 0.0  # probability of each number of votes for response 0
    for taken in range(0, num_votes, 2):
        left, stays = num_votes - taken, dict[int, float]()
        for for_0, chance in reached.items():
            if is_settled(for_0, taken - for_0, 0, left, error):
                side, lead = (share, for_0) if 2 * for_0 > taken else (1 - share, taken - for_0)
                most = num_votes // 2 - lead  # of the votes left, for the leader, that take its lead away
                lost = sum(comb(left, more) * side**more * (1 - side) ** (left - more) for more in range(most + 1))
                total += chance * lost
            else:
                stays[for_0] = chance
        reached = {}
        for for_0, chance in stays.items():
            for more, weight in ((0, (1 - share) ** 2), (1, 2 * share * (1 - share)), (2, share**2)):
                reached[for_0 + more] = reached.get(for_0 + more, 0.0) + chance * weight
    return total


def votes_settled(votes: Sequence[Vote], left: int, error: float) -> bool:
    """Return :func:`is_settled` of votes and ``left`` more."""
    winners = [vote.winner for vote in votes]
    return is_settled(winners.count(0), winners.count(1), winners.count(None), left, error)


@dataclass(frozen=True)
class EarlyStop:
    """The end of a sequence of votes that was stopped early: its outcome and the votes that were used."""

    outcome: Outcome
    votes: tuple[Vote, ...]

    @property
    def num_votes(self) -> int:
        return len(self.votes)

    @property
    def num_tokens(self) -> int:
        return sum(vote.completion.num_tokens for vote in self.votes)


def alternate_orders(votes: Sequence[Vote]) -> list[Vote]:
    """Return the votes with the two orders taking turns, each order's in the sequence they were drawn; unpaired ones are left
    out."""
    given, swapped = (in_order(votes, order) for order in BOTH_ORDERS)
    return [vote for pair in zip(given, swapped, strict=False) for vote in pair]


def stop_early(votes: Sequence[Vote], error: float) -> EarlyStop:
    """Return a pair's recorded votes taken in turns, two at a time, until the majority of all of them is settled."""
    sequence, counts = alternate_orders(votes), [0, 0]
    for taken, vote in enumerate(sequence, start=1):
        if (winner := vote.winner) is not None:
            counts[winner] += 1
        if taken % 2 == 0 and is_settled(counts[0], counts[1], taken - sum(counts), len(sequence) - taken, error):
            return EarlyStop(majority(sequence[:taken]), tuple(sequence[:taken]))
    return EarlyStop(majority(sequence), tuple(sequence))
