"""MM-RLHF (arXiv 2502.10391): people's rankings of three to five answers, about images and videos.

Two files, told apart by their keys. ``dpo_pairs.jsonl``: ``id, prompt, chosen, rejected`` and either ``image`` or ``video``.
``data.jsonl``: ``id, question, image, video, models_output (3 to 5), faithfulness, helpfulness, ethical, final_ranking``; of
these every two answers whose mean scores differ are a pair. The shape of ``final_ranking`` could not be found out, and it is
not read. Media are paths into archives to be unpacked beside the file, ``long/ short/ mcq/ safety/ video/``, which are the
categories; a video is a folder of frames. A prompt has up to ten pairs: split by image, not by row. The paper says 120,000
pairs, R1-Reward used 105,740, the public file of pairs has 62,545 (counted by others), that of rankings 16,342 prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text, make_pair_or_drop, make_pairs_by_score
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

SCORES = ("faithfulness", "helpfulness", "ethical")


def media_and_category(row: Mapping[str, Any], source: SourceFolder) -> tuple[tuple[bytes, ...], str]:
    """Return (images or frames, category). Raises DataError for a row without either."""
    path = row.get("video") or row.get("image")
    if not path:
        raise DataError("neither 'image' nor 'video' is given")
    first = path[0] if isinstance(path, list) else path
    parts = Path(first).parts
    category = parts[0] if len(parts) > 1 else ""
    return (
        (source.frame_folder(path, "video"), category or "video")
        if row.get("video")
        else (source.images(path, "image"), category)
    )


def score(row: Mapping[str, Any], n: int) -> float | None:
    """Return the mean score of answer ``n``; None where one is missing."""
    try:
        mean = sum(float(row[name][n]) for name in SCORES) / len(SCORES)
    except (TypeError, ValueError):
        return None
    return mean if math.isfinite(mean) else None


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair, or up to ten."""
    if "models_output" in row:
        yield from _ranked(row, source)
        return
    question, better, worse = (clean_text(row[name], name) for name in ("prompt", "chosen", "rejected"))
    if row.get("is_tie"):
        yield Dropped("tie")
    else:
        images, category = media_and_category(row, source)
        yield make_pair_or_drop(question, better, worse, images, category=category)


def _ranked(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    question, (images, category) = clean_text(row["question"], "question"), media_and_category(row, source)
    scored = [(clean_text(answer or "", "models_output"), score(row, n)) for n, answer in enumerate(row["models_output"])]
    yield from make_pairs_by_score(question, scored, images, category=category)


RECIPE = Recipe(
    "mm_rlhf",
    "https://huggingface.co/datasets/yifanzhang114/MM-RLHF",
    "",
    None,
    convert,
    files=("**/dpo_pairs.jsonl", "**/data.jsonl", "**/*.parquet"),
)
