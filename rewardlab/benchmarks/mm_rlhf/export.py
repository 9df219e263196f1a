"""Votes in place of the rewards that MM-RLHF-RewardBench's scorer takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.types import Judgment
from rewardlab.verdicts.votes import share_of_valid


def rewards_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the share of votes for each answer, both orders weighing the same, in place of a scalar model's rewards."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        share = share_of_valid(judgment.votes)
        rewards = [0.0, 0.0] if share is None else [share, 1 - share]
        records.append({"id": row.cluster, row.slices["medium"]: row.medium, "rewards": rewards})
    return records
