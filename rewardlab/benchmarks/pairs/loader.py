"""A user's own labelled pairs (.parquet or .jsonl, see rewardlab.data.pairs), grouped by category."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import DataError


def load_labelled_pairs(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of pairs with a label; images embedded, or paths from ``--images``.

    Raise DataError for an unlabelled or malformed row, MediaError for an image that cannot be used.
    """
    rows = []
    for number, pair in enumerate(read_pairs(data, images=images)):
        if pair.preferred is None:
            raise DataError(f"{data}, row {number}: has no label; 'preferred' must be 0 or 1 to benchmark on it")
        visible = pair if with_images else replace(pair, images=())
        slices = {"source": pair.source or "unknown", "level": str(pair.level)}
        rows.append(Row(number, visible, pair.category or "all", pair.pair_id, slices))
    return rows
