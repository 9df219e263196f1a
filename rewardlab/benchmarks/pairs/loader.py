"""A user's own labelled pairs (.parquet or .jsonl, see rewardlab.data.pairs), grouped by category."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.data.pairs import read_pairs
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import with_frames
from rewardlab.errors import DataError


def load_labelled_pairs(data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None) -> list[Row]:
    """Return the rows of pairs with a label; images embedded, or paths from ``--images``; ``policy``: of their videos.

    Raise DataError for an unlabelled or malformed row, MediaError for an image that cannot be used.
    """
    rows = []
    for number, stored in enumerate(read_pairs(data, images=images, frames=None)):
        pair = with_frames(stored, policy=policy)
        if pair.preferred is None:
            raise DataError(f"{data}, row {number}: has no label; 'preferred' must be 0 or 1 to benchmark on it")
        visible = pair if with_images else replace(pair, images=())
        slices = {"source": pair.source or "unknown", "level": str(pair.level)}
        rows.append(Row(number, visible, pair.category or "all", pair.pair_id, slices, num_videos=len(stored.videos)))
    return rows
