"""How often a policy was right, of the counts that `rewardlab data negatives` leaves in ``policy.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


def latest_as_good(answers: Mapping[str, dict[str, Any]]) -> str:
    """Return the last of some policies, oldest first, that is no worse than the best by more than one standard error of the
    difference of their shares (the rule of Breiman et al., Classification and Regression Trees, 1984, 3.4.3); the first, where
    none has an answer that is known to be right.

    The best of several that are asked some hundred questions each is the best by luck, too: who always takes it goes back to
    an old policy again and again, though the new ones are better by a little.
    """
    best = max(answers, key=lambda name: share_right(answers[name]))
    good = [
        name
        for name, counts in answers.items()
        if counts["right"] and share_right(answers[best]) - share_right(counts) <= _standard_error(answers[best], counts)
    ]
    return good[-1] if good else next(iter(answers))


def _standard_error(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return that of a difference of two shares, as of answers to different questions: to the same ones it is too large."""
    shares = ((share_right(row), max(1, int(row["questions"]))) for row in (one, other))
    return math.sqrt(sum(share * (1 - share) / number for share, number in shares))
