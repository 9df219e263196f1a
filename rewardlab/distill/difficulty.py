"""How hard a pair is, measured three ways, and how far these agree.

*Attempts*: how often the teacher had to be asked until it agreed with the label (R1-Reward, arXiv 2505.02835). *Teacher share*:
the share of its votes over both orders that name the label. *Student rate*: the same of the judge to be trained. The first
costs least and says least: one lucky answer of a coin makes a hard pair easy. Pure functions; no I/O.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from scipy.stats import spearmanr

from rewardlab.data.votes import StoredVote
from rewardlab.distill.statistics import TAGS, tag_rank
from rewardlab.errors import DataError
from rewardlab.rl.selection import TIER_BOUNDS, TIERS
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, choice_of

SURE = 4  # votes in each order that must all be wrong: by chance that is 1 pair in 256


class Tier(StrEnum):
    """Offline tiers of RLCS (arXiv 2507.01006), at the pass rates of :data:`rewardlab.rl.selection.TIER_BOUNDS`."""

    EASY = "easy"  # right in 90 % or more of the votes; the teacher's first attempt
    MEDIUM = "medium"  # 60 % or more; its second
    HARD = "hard"  # 25 % or more: a coin is right in 50 %; its third
    VERY_HARD = "very_hard"  # rather wrong than right, or mislabelled; unsolved
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Difficulty:
    """Hold what is known of one pair: ``attempts`` 1..3, or 4 for unsolved; shares 0..1 of right votes, one without a verdict
    counting as wrong; ``suspect``: the student is wrong every time in both orders, with verdicts throughout, so that the label
    is in doubt.
    """

    attempts: int | None = None
    teacher_share: float | None = None
    student_rate: float | None = None
    suspect: bool = False

    @property
    def tier(self) -> Tier:
        """Return the level by the student's rate where there is one, else by the teacher's share, else by attempts."""
        rate = self.student_rate if self.student_rate is not None else self.teacher_share
        if rate is not None:
            return Tier(TIERS[bisect_right(TIER_BOUNDS, rate)])
        if self.attempts is not None:
            return (Tier.EASY, Tier.MEDIUM, Tier.HARD, Tier.VERY_HARD)[self.attempts - 1]
        return Tier.UNKNOWN


def student_votes(labels: Sequence[int | None], votes: Iterable[StoredVote]) -> dict[int, Difficulty]:
    """Return by row the rate of right votes and whether the label is in doubt, of rows that are labelled and have votes.

    Raises DataError where the votes name rows that are not there.
    """
    hits: dict[int, dict[Order, list[bool]]] = {}
    invalid: set[int] = set()
    for vote in votes:
        if vote.row >= len(labels):
            raise DataError(
                f"the votes are on at least {vote.row + 1:,} pairs, the data hold {len(labels):,}: not the same file"
            )
        if (preferred := labels[vote.row]) is None:
            continue
        by_order = hits.setdefault(vote.row, {order: [] for order in BOTH_ORDERS})
        by_order[vote.order].append(vote.choice is choice_of(preferred, vote.order))
        if vote.choice is None:
            invalid.add(vote.row)
    difficulties = {}
    for row, by_order in hits.items():
        row_hits = [hit for order_hits in by_order.values() for hit in order_hits]
        always_wrong = all(len(order_hits) >= SURE and not any(order_hits) for order_hits in by_order.values())
        # A judge that gave no verdict has not contradicted the label.
        difficulties[row] = Difficulty(student_rate=sum(row_hits) / len(row_hits), suspect=always_wrong and row not in invalid)
    return difficulties


def difficulty_of(pair: PreferencePair, student: Difficulty | None = None) -> Difficulty:
    """Return all that is known of how hard a pair is."""
    attempts = tag_rank(pair.attempts) if pair.attempts in TAGS else None
    student = student or Difficulty()
    return Difficulty(attempts, pair.teacher_share, student.student_rate, student.suspect)


def agreement(difficulties: Sequence[Difficulty]) -> dict[str, dict[str, float | list[float] | None]]:
    """Return Spearman's rho of every two measures as hardness, with its number of pairs and 95 % interval (Fisher's z); None
    where one of the two does not vary or fewer than four pairs have both.
    """
    measures: Mapping[str, list[float | None]] = {
        "attempts": [None if d.attempts is None else float(d.attempts) for d in difficulties],
        "teacher_share": [None if d.teacher_share is None else 1 - d.teacher_share for d in difficulties],
        "student_rate": [None if d.student_rate is None else 1 - d.student_rate for d in difficulties],
    }
    correlations = {}
    for first, second in combinations(measures, 2):
        both = [(a, b) for a, b in zip(measures[first], measures[second], strict=True) if a is not None and b is not None]
        correlations[f"{first} / {second}"] = _rho(both)
    return correlations


def _rho(both: Sequence[tuple[float, float]]) -> dict[str, float | list[float] | None]:
    if len(both) < 4 or any(len({pair[side] for pair in both}) < 2 for side in (0, 1)):
        return {"pairs": len(both), "spearman": None, "interval": None}
    rho = float(spearmanr([a for a, _ in both], [b for _, b in both]).statistic)
    if abs(rho) >= 1:
        return {"pairs": len(both), "spearman": rho, "interval": [rho, rho]}
    z, half = math.atanh(rho), 1.96 / math.sqrt(len(both) - 3)
    return {"pairs": len(both), "spearman": rho, "interval": [math.tanh(z - half), math.tanh(z + half)]}


def histogram(difficulties: Iterable[Difficulty]) -> dict[str, dict[str, int]]:
    """Return how many pairs there are of each tier and of each number of attempts."""
    tiers, attempts = Counter[Tier](), Counter[int | None]()
    for difficulty in difficulties:
        tiers[difficulty.tier] += 1
        attempts[difficulty.attempts] += 1
    by_tag = {tag: attempts[n] for n, tag in enumerate(TAGS, start=1)} | {"not asked": attempts[None]}
    return {"tier": {tier.value: tiers[tier] for tier in Tier}, "attempts": by_tag}
