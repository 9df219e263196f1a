"""A user's own labelled pairs (.parquet or .jsonl, see rewardlab.data.pairs), grouped by category."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import DataError


class OwnPairs:
    """Pairs with a label; images embedded, or paths from ``--images``."""

    name = "pairs"
    sizes: Mapping[str, int] = {}
    first_preferred: Mapping[str, int] = {}
    whole_prompts = False
    num_prompts: int | None = None
    sources: tuple[str, ...] = ()

    def load(self, data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
        """Raises DataError for an unlabelled or malformed row, MediaError for an image that cannot be used."""
        rows = []
        for number, pair in enumerate(read_pairs(data, images=images)):
            if pair.preferred is None:
                raise DataError(f"{data}, row {number}: has no label; 'preferred' must be 0 or 1 to benchmark on it")
            kept = pair if with_images else replace(pair, images=())
            slices = {"source": pair.source or "unknown", "level": str(pair.level)}
            rows.append(Row(number, kept, pair.category or "all", pair.pair_id, slices))
        return rows
