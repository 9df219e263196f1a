"""The reward of one judgment: R = 0.5 F + Acc (1 + 0.5 C) (arXiv 2505.02835, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RewardParts:
    """What one rollout earned and why. ``status`` says how the verdict was read; see rewardlab.types.VerdictStatus."""

    format: bool
    right: bool
    consistency: int
    status: str
    total: float


def judge_reward(
    *, format_ok: bool, right: bool, consistency: int, format_weight: float = 0.5, consistency_weight: float = 0.5
) -> float:
    """Reward in 0..2 (with the default weights).

    ``right``: the verdict names the preferred response. ``consistency`` is -1 (reasoning contradicts the verdict), 0
    (unknown) or +1 (agrees); it multiplies the result, so it is worth nothing where the verdict is wrong.
    Right and consistent 2.0 (1.5 in bad format); right and unknown 1.5; right and inconsistent 1.0; wrong 0.5 or 0.
    Raises ValueError for another consistency.
    """
    if consistency not in (-1, 0, 1):
        raise ValueError(f"consistency is -1, 0 or +1, got {consistency!r}")
    return format_weight * format_ok + right * (1 + consistency_weight * consistency)


def winner_of(parts: RewardParts, preferred: int) -> int | None:
    """The response a rollout named, 0 or 1; None where no verdict was read."""
    if parts.right:
        return preferred
    return 1 - preferred if parts.status == "ok" else None
