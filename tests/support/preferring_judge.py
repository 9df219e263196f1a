"""A judge whose preferences are known, for rewards that must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Judgment, Outcome, Verdict, VerdictStatus, Vote


class Prefers:
    """In a judge's place: the probability is ``score(first) - score(second)`` on a line; notes what it is asked, and with
    which seeds."""

    name = "prefers"
    verdict_temperature = 1.0

    def __init__(
        self, score: Callable[[str], float], unreadable: frozenset[str] = frozenset(), orders: Any = BOTH_ORDERS
    ) -> None:
        self._score, self._unreadable, self._orders = score, unreadable, orders
        self.asked: list[tuple[str, str]] = []
        self.seeds: list[int] = []

    def compare_many(self, pairs: Any, *, orders: Any, num_votes: int, seed: int) -> list[Judgment]:
        assert list(orders) == [BOTH_ORDERS] * len(pairs)
        self.asked += [pair.responses for pair in pairs]
        self.seeds.append(seed)
        return [self._judgment(pair) for pair in pairs]

    def _judgment(self, pair: Any) -> Judgment:
        share = self._share(*pair.responses)
        verdict = Verdict(None, VerdictStatus.NO_VERDICT if share is None else VerdictStatus.TIE)
        margin = None if share is None else 0.0  # it gives probabilities, not votes
        votes = tuple(Vote(order, verdict, Completion("", FinishReason.STOP), margin) for order in self._orders)
        return Judgment(pair.pair_id, votes, Outcome.TIE, share)

    def _share(self, first: str, second: str) -> float | None:
        if self._unreadable & {first, second}:
            return None
        return 0.5 + (self._score(first) - self._score(second)) / 2
