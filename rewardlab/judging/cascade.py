"""A cascade of judges: a cheap tier judges every pair, and the next tier those of which it is unsure (arXiv 2407.18370)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.judging.judge import JudgeKind, ModelJudge
from rewardlab.types import BOTH_ORDERS, Judgment, PreferencePair
from rewardlab.verdicts.votes import both_orders_or_none, winner_share


@dataclass(frozen=True)
class CascadeTier:
    """``judge`` with ``num_votes`` in each order decides the pairs whose confidence (0.5..1) exceeds ``threshold``; the last
    tier decides all that are left. A tier with the judge of the one before adds votes to those there are."""

    judge: ModelJudge
    num_votes: int
    threshold: float = 0.0


@dataclass(frozen=True)
class TieredJudgment:
    """The judgment of the tier number ``tier``, and how many votes of both orders all tiers sampled for it."""

    judgment: Judgment
    tier: int
    num_samples: int


def _is_sure(judged: Judgment, threshold: float) -> bool:
    """Return whether a judgment names a response with more confidence than ``threshold``."""
    share = winner_share(judged)
    return share is not None and share > threshold


def compare_in_tiers(tiers: Sequence[CascadeTier], pairs: Sequence[PreferencePair], *, seed: int = 0) -> list[TieredJudgment]:
    """Return the judgment of each pair in both orders, by the first tier that is sure of it. Raise ValueError without a tier,
    and for a tier with the judge of the one before and no more votes than it."""
    if not tiers:
        raise ValueError("expected one tier or more")
    results: dict[int, TieredJudgment] = {}
    left, before = list(range(len(pairs))), CascadeTier(tiers[0].judge, 0)
    for number, tier in enumerate(tiers):
        known = before.num_votes if tier.judge is before.judge else 0
        if tier.num_votes <= known:
            raise ValueError(f"tier {number} has {tier.num_votes} votes of the judge before it; expected more than {known}")
        judgments = tier.judge.compare_many(
            [pairs[n] for n in left],
            orders=[BOTH_ORDERS] * len(left),
            num_votes=tier.num_votes - known,
            seed=seed + known,
        )
        for n, judged in zip(left, judgments, strict=True):
            results[n] = _joined(tier.judge, results.get(n), judged, number, adds=known > 0)
        left, before = [n for n in left if not _is_sure(results[n].judgment, tier.threshold)], tier
        if not left:
            break
    return [results[n] for n in range(len(pairs))]


def _joined(judge: JudgeKind, earlier: TieredJudgment | None, judged: Judgment, tier: int, *, adds: bool) -> TieredJudgment:
    votes = judged.votes if earlier is None or not adds else (*earlier.judgment.votes, *judged.votes)
    samples = len(judged.votes) + (earlier.num_samples if earlier else 0)
    return TieredJudgment(both_orders_or_none(judge.reduce(judged.pair_id, votes)), tier, samples)
