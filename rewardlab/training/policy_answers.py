"""How often a policy was right, of the counts that `rewardlab data negatives` leaves in ``policy.json``."""

from __future__ import annotations

from typing import Any


def add_answers(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a policy's answers of two times that it was asked, and the mean of what both were paid."""
    both = {name: first[name] + second[name] for name in ("questions", "right", "wrong", "unknown", "paid")}
    paid = [(row["reward"], row["paid"]) for row in (first, second) if row["reward"] is not None]
    total = sum(number for _, number in paid)
    return {**both, "reward": sum(reward * number for reward, number in paid) / total if total else None}


def share_right(result: dict[str, Any]) -> float:
    """Return the share, in 0..1, of answers that are known to be right. One of which nothing is known is no success: a policy
    would gain by answers that no rule can read."""
    right: int = result["right"]
    return right / max(1, int(result["questions"]))
