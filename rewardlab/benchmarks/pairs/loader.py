"""A user's own labelled pairs (.parquet or .jsonl, see rewardlab.data.pairs), grouped by category."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.pairs.clusters import CLUSTERS, PROMPT, clusters_of
from rewardlab.data.pairs import read_pairs
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import with_frames
from rewardlab.errors import DataError

MOST_KEPT_BYTES = 256 << 20  # of images that are kept for a page of judgments though the judge does not look


def load_labelled_pairs(
    data: Path,
    *,
    images: Path | None,
    with_images: bool,
    policy: VideoPolicy | None = None,
    cluster: str = PROMPT,
    allow_columns: Collection[str] = (),
) -> list[Row]:
    """Return the rows of pairs with a label; images embedded, or paths from ``--images``; ``policy``: of their videos.

    ``cluster``: one of :data:`rewardlab.benchmarks.pairs.clusters.CLUSTERS`, or a column; ``allow_columns`` as
    :func:`rewardlab.data.pairs.validate_rows` takes them. Raise DataError for an unlabelled or malformed row, MediaError for an
    image that cannot be used, ConfigError for a column that is not there.
    """
    rows, allowed = [], (*allow_columns, *(() if cluster in CLUSTERS else (cluster,)))
    kept = MOST_KEPT_BYTES
    pairs = read_pairs(data, images=images, frames=None, allow_columns=allowed)
    for number, (stored, key) in enumerate(zip(pairs, clusters_of(pairs, data, cluster), strict=True)):
        pair = with_frames(stored, where=f"{data}, row {number}", policy=policy)
        if pair.preferred is None:
            raise DataError(f"{data}, row {number}: has no label; 'preferred' must be 0 or 1 to benchmark on it")
        visible = pair if with_images else replace(pair, images=())
        slices = {"source": pair.source or "unknown", "level": str(pair.level)}
        kept -= sum(map(len, pair.images))
        media = partial(tuple, pair.images) if pair.images and not with_images and kept > 0 else None
        rows.append(Row(number, visible, pair.category or "all", key, slices, num_videos=len(stored.videos), media=media))
    return rows
