"""The reward of a judge's rollout, composed in one place: R = w_f F + correct (1 + w_c C) + w_s swap + overlong.

F, correct and C are R1-Reward's (arXiv 2505.02835, section 4.2): format, verdict and whether the reasoning agrees with it. To
them come the agreement with the other order's rollouts (:mod:`rewardlab.rewards.swap`) and DAPO's length penalty (arXiv
2503.14476, eq. 13). The trainer, the verl plug-in and the audit all pay by :func:`compose`.

Adding a term: a field of :class:`RewardWeights` and its line in :func:`compose`, plus its key in ``config/rl.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rewardlab.rl.selection import overlong_penalty


@dataclass(frozen=True)
class RewardWeights:
    """``format`` and ``consistency`` as in R1-Reward, ``swap`` for naming the winner that the other order names, ``overlong``
    as (longest, margin) in tokens: up to -1 within ``margin`` of ``longest``; None: no penalty."""

    format: float = 0.5
    consistency: float = 0.5
    swap: float = 0.0
    overlong: tuple[int, int] | None = None


@dataclass(frozen=True)
class RewardParts:
    """What one rollout earned and why. ``consistency`` is -1 (reasoning contradicts the verdict), 0 (unknown) or +1 (agrees);
    ``status`` says how the verdict was read, see rewardlab.types.VerdictStatus; ``total`` is 0 until it is composed."""

    format: bool
    correct: bool
    consistency: int
    status: str
    total: float = 0.0
    swap_agreement: float = 0.0
    overlong: float = 0.0


def judgment_reward(
    *, format_ok: bool, correct: bool, consistency: int, format_weight: float = 0.5, consistency_weight: float = 0.5
) -> float:
    """Return the reward of a judgment seen alone, in 0..2 with the default weights.

    ``correct``: the verdict names the preferred response. ``consistency`` is -1, 0 or +1; it multiplies the result, so it is
    worth nothing where the verdict is wrong. Correct and consistent 2.0 (1.5 in bad format); correct and unknown 1.5; correct
    and inconsistent 1.0; wrong 0.5 or 0. Raise ValueError for another consistency.
    """
    if consistency not in (-1, 0, 1):
        raise ValueError(f"consistency is -1, 0 or +1, got {consistency!r}")
    return format_weight * format_ok + correct * (1 + consistency_weight * consistency)


def compose(
    parts: Sequence[RewardParts],
    weights: RewardWeights,
    *,
    agreements: Sequence[float] | None = None,
    lengths: Sequence[int] | None = None,
) -> list[RewardParts]:
    """Return the parts with their totals.

    ``agreements`` in 0..1 are needed where ``weights.swap`` is not 0, ``lengths`` in tokens where ``weights.overlong`` is
    given; ValueError without. A rollout whose scoring failed (status ``error``) earns nothing but these two.
    """
    if weights.swap and agreements is None:
        raise ValueError("a swap weight needs the agreement of each rollout with the other order's")
    if weights.overlong and lengths is None:
        raise ValueError("an overlong penalty needs the length of each rollout")
    composed = []
    for n, part in enumerate(parts):
        total = 0.0
        if part.status != "error":
            total = judgment_reward(
                format_ok=part.format,
                correct=part.correct,
                consistency=part.consistency,
                format_weight=weights.format,
                consistency_weight=weights.consistency,
            )
        agreement = agreements[n] if agreements is not None and weights.swap else 0.0
        if weights.swap:
            total += weights.swap * agreement
        cost = 0.0
        if weights.overlong and lengths is not None:
            longest, margin = weights.overlong
            cost = float(overlong_penalty(torch.tensor([lengths[n]]), longest=longest, margin=margin))
            total += cost
        composed.append(replace(part, total=total, swap_agreement=agreement, overlong=cost))
    return composed


def winner_of(parts: RewardParts, preferred: int) -> int | None:
    """Return the response a rollout named, 0 or 1; None where no verdict was read."""
    if parts.correct:
        return preferred
    return 1 - preferred if parts.status == "ok" else None
