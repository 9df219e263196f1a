"""A user's own labelled pairs (.parquet or .jsonl, see rewardlab.data.pairs), grouped by category."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.pairs.clusters import CLUSTERS, PROMPT, clusters_of
from rewardlab.data.pairs import read_pairs
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import with_frames
from rewardlab.errors import DataError, MediaError
from rewardlab.types import PreferencePair

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
    image that cannot be used (without ``with_images``: that is not there), ConfigError for a column that is not there.
    """
    rows, allowed = [], (*allow_columns, *(() if cluster in CLUSTERS else (cluster,)))
    kept, undecodable = MOST_KEPT_BYTES, None if with_images else dict[bytes, str]()
    pairs = read_pairs(data, images=images, frames=None, allow_columns=allowed, undecodable=undecodable)
    for number, (stored, key) in enumerate(zip(pairs, clusters_of(pairs, data, cluster), strict=True)):
        pair, fault = _with_frames(stored, f"{data}, row {number}", policy, undecodable)
        if pair.preferred is None:
            raise DataError(f"{data}, row {number}: has no label; 'preferred' must be 0 or 1 to benchmark on it")
        visible = pair if with_images else replace(pair, images=())
        slices = {"source": pair.source or "unknown", "level": str(pair.level)}
        kept -= sum(map(len, pair.images))
        media = partial(tuple, pair.images) if pair.images and not with_images and kept > 0 else None
        page_media = partial(_refuse, fault) if fault else media
        rows.append(Row(number, visible, pair.category or "all", key, slices, num_videos=len(stored.videos), media=page_media))
    return rows


def _with_frames(
    stored: PreferencePair, where: str, policy: VideoPolicy | None, undecodable: Mapping[bytes, str] | None
) -> tuple[PreferencePair, str]:
    """Return the pair with frames of its videos, and "". Of one with media that cannot be decoded, where nobody looks at them,
    return it without any, and why."""
    if undecodable is None:
        return with_frames(stored, where=where, policy=policy), ""
    images = (*stored.images, *stored.response_images[0], *stored.response_images[1])
    fault = next((undecodable[image] for image in images if image in undecodable), "")
    try:
        pair = stored if fault else with_frames(stored, where=where, policy=policy)
    except MediaError as error:
        fault = str(error)
    return (replace(stored, images=(), videos=(), response_images=((), ())), fault) if fault else (pair, "")


def _refuse(fault: str) -> tuple[bytes, ...]:
    raise MediaError(fault)
