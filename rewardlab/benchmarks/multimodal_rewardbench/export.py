"""Votes as Multimodal RewardBench's inference writes its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardlab.benchmarks.base import Row, vote_text
from rewardlab.types import Judgment, Order
from rewardlab.verdicts.votes import in_order


def outputs_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the first vote of each pair in the order of the file."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        votes = in_order(judgment.votes, Order.GIVEN)
        output = vote_text(votes[0], "double_brackets", verdict_format) if votes else ""
        label = "A" if row.pair.preferred == 0 else "B"
        meta = {"Category": row.group.partition("/")[0]}  # its scorer divides safety and reasoning by the id
        records.append({"ID": row.pair.pair_id, "Label": label, "output": output, "Meta": meta})
    return records
