"""Which pairs of one's own are one draw: intervals over rows that share a prompt would be too narrow."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from rewardlab.data.row_files import rows_of
from rewardlab.errors import ConfigError
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
