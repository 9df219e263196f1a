"""A user's own labelled pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.systems import has_label, names_two_systems
from rewardlab.data.pairs import read_pairs
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import FRAMES, with_frames
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.types import PreferencePair

PROMPT = "prompt"
CLUSTERS = (PROMPT, "image", "question", "pair")


def prompt_key(pair: PreferencePair) -> str:
    """Return what two pairs of one prompt have in common: all their images, or their question where there is no image."""
    if not (pair.images or pair.videos):
        return question_key(pair)
    return " ".join(hashlib.sha256(data).hexdigest()[:16] for data in (*pair.images, *pair.videos))


def question_key(pair: PreferencePair) -> str:
    """Return the question without case and with single spaces."""
    return " ".join(pair.question.casefold().split())


def image_keys(pairs: Sequence[PreferencePair]) -> list[str]:
    """Return a name for each pair, the same for pairs that share any image or video, also by way of a third; pairs without
    media go by their question."""
    parents = list(range(len(pairs)))

    def root(n: int) -> int:
        while parents[n] != n:
            parents[n] = parents[parents[n]]
            n = parents[n]
        return n

    first: dict[str, int] = {}
    for n, pair in enumerate(pairs):
        media = [hashlib.sha256(data).hexdigest() for data in (*pair.images, *pair.videos)]
        for key in media or [question_key(pair)]:
            parents[root(n)] = root(first.setdefault(key, n))
    return [str(root(n)) for n in range(len(pairs))]


def column_keys(data: Path, column: str) -> list[str]:
    """Return the values of a column, row by row. Raise ConfigError where a row has none."""
    keys = []
    for number, row in enumerate(rows_of(data)):
        value = row.get(column)
        if value is None or value == "":
            raise ConfigError(
                f"{data}, row {number}: has no {column!r} to cluster by; --cluster takes {', '.join(CLUSTERS)}, or "
                f"one of the columns that every row has: {', '.join(map(str, row))}"
            )
        keys.append(str(value))
    return keys


def clusters_of(pairs: Sequence[PreferencePair], data: Path, by: str) -> list[str]:
    """Return the cluster of each pair of ``data`` (in its order): one of :data:`CLUSTERS`, or by a column of the file. Raise
    ConfigError for a column that is not there."""
    if by == "image":
        return image_keys(pairs)
    keys = {PROMPT: prompt_key, "question": question_key, "pair": lambda pair: pair.pair_id}
    return list(map(keys[by], pairs)) if by in keys else column_keys(data, by)


MOST_KEPT_BYTES = 256 << 20  # of images that are kept for a page of judgments though the judge does not look


def load_labelled_pairs(
    data: Path,
    *,
    images: Path | None,
    with_images: bool,
    policy: VideoPolicy | None = None,
    cluster: str = PROMPT,
    allow_columns: Collection[str] = (),
    unlabelled: bool = False,
) -> list[Row]:
    """Return the rows of pairs with a label, a tie, ratings or two systems (``unlabelled``: also of others); images embedded,
    or paths from ``--images``; ``policy``: of their videos.

    ``cluster``: one of :data:`rewardlab.benchmarks.pairs.CLUSTERS`, or a column; ``allow_columns`` as
    :func:`rewardlab.data.pairs.validate_rows` takes them. Raise DataError for an unlabelled or malformed row, MediaError for an
    image that cannot be used (without ``with_images``: that is not there), ConfigError for a column that is not there.
    """
    rows, allowed = [], (*allow_columns, *(() if cluster in CLUSTERS else (cluster,)))
    kept, undecodable = MOST_KEPT_BYTES, None if with_images else dict[bytes, str]()
    pairs = read_pairs(data, images=images, frames=None, allow_columns=allowed, undecodable=undecodable)
    for number, (stored, key) in enumerate(zip(pairs, clusters_of(pairs, data, cluster), strict=True)):
        pair, fault = _with_frames(stored, f"{data}, row {number}", policy, undecodable)
        if not (unlabelled or has_label(pair) or pair.ratings or names_two_systems(pair)):
            raise DataError(
                f"{data}, row {number}: has no label; to benchmark on it, 'preferred' must be 0, 1, tie or both_bad, or its "
                "ratings come with --labels FILE"
            )
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


BENCHMARK = Benchmark(name="pairs", load=load_labelled_pairs, load_videos=load_labelled_pairs, frames=FRAMES)
