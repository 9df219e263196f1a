"""What judges are asked besides, on a sample of each rollout batch: with blank pictures, of labelled pairs, beside another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.data.pair_table import pair_facts
from rewardlab.data.rows import with_blank_images
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.types import BOTH_ORDERS, Judgment, PreferencePair, Vote
from rewardlab.verdicts.votes import VALID, enough_valid


@dataclass(frozen=True)
class AnswerComparison:
    """An answer of the policy (response 0) against another text, and what the judge said of them in both orders."""

    pair: PreferencePair
    judgment: Judgment


def share_in_both_orders(judgment: Judgment) -> float | None:
    """Return the share for response 0; None if an order has no valid vote, as the other one alone holds its position bias, or
    if fewer than half of the votes asked are valid. A vote that calls it a tie is half a one for either."""
    read = [vote for vote in judgment.votes if vote.verdict.status in VALID]
    if {vote.order for vote in read} != set(BOTH_ORDERS) or not enough_valid(judgment.votes):
        return None
    if any(vote.margin is not None for vote in read):
        return judgment.share_0
    halves = {order: [_half_points(vote) for vote in read if vote.order is order] for order in BOTH_ORDERS}
    return sum(sum(points) / len(points) for points in halves.values()) / (2 * len(BOTH_ORDERS))


def _half_points(vote: Vote) -> int:
    return 1 if vote.winner is None else 2 * (vote.winner == 0)


def orders_agree(judgment: Judgment) -> bool | None:
    """Return whether all votes of both orders name one response; None where an order has no vote that can be read."""
    if share_in_both_orders(judgment) is None:
        return None
    winners = {vote.winner for vote in judgment.votes if vote.verdict.status in VALID}
    return len(winners) == 1 and None not in winners


def drawn_canaries(pairs: Sequence[PreferencePair], number: int, seed: int) -> list[PreferencePair]:
    """Return labelled pairs that are asked again and again. They are drawn once: other pairs would be easier or harder, and
    look like another judge."""
    labelled = [n for n, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None] if number else []
    places = random.Random(f"canaries {seed}").sample(labelled, min(number, len(labelled)))
    return [pairs[place] for place in places]


class JudgeChecks:
    """Asks ``judge`` of ``sample`` comparisons of each batch again, with blank pictures, and ``second_judge`` of the same ones
    as they are; and of ``num_canaries`` of the labelled ``canaries``, drawn once by ``seed``.

    What a policy learns to write to please a judge does not depend on the picture, and does not please another judge.
    """

    def __init__(
        self,
        judge: GenerativeJudge,
        *,
        sample: int = 16,
        second_judge: GenerativeJudge | None = None,
        canaries: Sequence[PreferencePair] = (),
        num_canaries: int = 8,
        num_votes: int = 1,
        seed: int = 0,
    ) -> None:
        self._judge, self._second, self._sample = judge, second_judge, sample
        self._num_votes, self._seed = num_votes, seed
        self._canaries = drawn_canaries(canaries, num_canaries, seed)

    def __call__(self, comparisons: Sequence[AnswerComparison], step: int) -> Metrics:
        """Return ``judge/blank_gap``, ``judge/second_gap`` and ``judge/canaries``, each where it was asked for and can be read.

        A gap is the mean distance (0..1) of two probabilities that the answer beats the other text.
        """
        dice = random.Random(f"signs {self._seed} {step}")
        some = dice.sample(list(comparisons), min(self._sample, len(comparisons)))
        metrics: dict[str, Metric] = {}
        seen = [each for each in some if each.pair.images]
        if seen:
            metrics |= self._gap("judge/blank_gap", self._judge, seen, with_blank_images([each.pair for each in seen]), step)
        if self._second is not None and some:
            metrics |= self._gap("judge/second_gap", self._second, some, [each.pair for each in some], step)
        if self._canaries:
            right, num_read = self._canary_votes(step)
            if 2 * num_read >= len(self._canaries):  # of fewer it would be another mean
                metrics["judge/canaries"] = Metric(sum(right) / len(right), len(right))
        return metrics

    def _canary_votes(self, step: int) -> tuple[list[bool], int]:
        """Return which votes on canaries are right, and how many canaries have a vote that can be read in both orders. A vote
        without a verdict is no wrong one, and ``judge/unreadable_frac`` tells of a judge that fails."""
        read = [
            (pair, judgment)
            for pair, judgment in zip(self._canaries, self._ask(self._judge, self._canaries, step), strict=True)
            if share_in_both_orders(judgment) is not None
        ]
        votes = [(vote, pair) for pair, judgment in read for vote in judgment.votes if vote.verdict.status in VALID]
        return [vote.winner == pair.preferred for vote, pair in votes], len(read)

    def _ask(self, judge: GenerativeJudge, pairs: Sequence[PreferencePair], step: int) -> list[Judgment]:
        orders = [BOTH_ORDERS] * len(pairs)
        return judge.compare_many(pairs, orders=orders, num_votes=self._num_votes, seed=self._seed + step)

    def _gap(
        self, name: str, judge: GenerativeJudge, before: Sequence[AnswerComparison], pairs: Sequence[PreferencePair], step: int
    ) -> dict[str, Metric]:
        shares = [
            (share_in_both_orders(first.judgment), share_in_both_orders(now))
            for first, now in zip(before, self._ask(judge, pairs, step), strict=True)
        ]
        gaps = [abs(a - b) for a, b in shares if a is not None and b is not None]
        return {name: Metric(sum(gaps) / len(gaps), len(gaps))} if gaps else {}
