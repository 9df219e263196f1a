"""Judges that do not look: what any real judge has to beat."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rewardlab.benchmarks.base import Row
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import JudgeKind, VoteSampling
from rewardlab.types import (
    IMAGE_MARK,
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    response_at,
)
from rewardlab.verdicts.votes import judgment

Rule = Callable[[tuple[str, str], random.Random], Choice | None]


def num_characters(text: str) -> int:
    """Return the length of a response, places of images not counted."""
    return len(text.replace(IMAGE_MARK, ""))


def _longest(texts: tuple[str, str], rng: random.Random) -> Choice | None:
    first, second = map(num_characters, texts)
    return None if first == second else Choice.FIRST if first > second else Choice.SECOND


def _shortest(texts: tuple[str, str], rng: random.Random) -> Choice | None:
    longest = _longest(texts, rng)
    return None if longest is None else longest.swap()


RULES: dict[str, Rule] = {
    "longest": _longest,
    "shortest": _shortest,
    "random": lambda texts, rng: rng.choice(list(Choice)),
    "first": lambda texts, rng: Choice.FIRST,
}


class BaselineJudge(JudgeKind):
    """``longest`` and ``shortest`` by characters (equal lengths are a tie, never right), ``random``, ``first`` as shown."""

    sees = is_queried = False
    sampling = VoteSampling()

    def __init__(self, rule: str) -> None:
        if rule not in RULES:
            raise ConfigError(f"unknown baseline {rule!r}; expected one of {', '.join(RULES)}")
        self._rule, self.name = RULES[rule], f"baseline:{rule}"

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        judgments = []
        for n, (pair, pair_orders) in enumerate(zip(pairs, orders, strict=True)):
            rng = random.Random(f"{seed} {n} {pair.pair_id}")
            votes = [self._vote(pair, order, rng) for order in pair_orders for _ in range(num_votes)]
            judgments.append(judgment(pair.pair_id, votes))
        return judgments

    def votes_of(self, rows: Sequence[Row], orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int) -> list[list[Vote]]:
        """Return the votes on each row."""
        judgments = self.compare_many([row.pair for row in rows], orders=orders, num_votes=num_votes, seed=seed)
        return [list(judgment.votes) for judgment in judgments]

    def score(self, pair: PreferencePair, orders: Sequence[Order], n: int, seed: int) -> float:
        """The score (0..1) of pair number ``n`` of known preference, by one vote per order as of :meth:`compare_many`."""
        rng = random.Random(f"{seed} {n} {pair.pair_id}")
        choices = [(self._rule(pair.shown(order), rng), order) for order in orders]
        return sum(choice is not None and response_at(choice, order) == pair.preferred for choice, order in choices) / len(
            orders
        )

    def _vote(self, pair: PreferencePair, order: Order, rng: random.Random) -> Vote:
        choice = self._rule(pair.shown(order), rng)
        status = VerdictStatus.TIE if choice is None else VerdictStatus.OK
        return Vote(order, Verdict(choice, status, self.name), Completion("", FinishReason.STOP))
