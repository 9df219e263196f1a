"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 prompts about images and videos.

Five categories by the path of the medium. Beside the accuracy over pairs, Acc+ is the share of prompts whose every pair is
right; with 46 of them its interval is wide. Rows share ids, so nothing is keyed by id here: a resume by id drops rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import json_rows, reason
from rewardlab.benchmarks.media import check_media, read_media, read_within
from rewardlab.benchmarks.mm_rlhf.official import path_category
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import validate
from rewardlab.data.video import is_video
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair


def load_mm_rlhf(data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None) -> list[Row]:
    """Return the rows of the JSON lines ``id, image | video, prompt, chosen, rejected``. Response 0 is ``chosen``.

    Raise DataError for a malformed row, MediaError with the media that are missing.
    """
    lines = json_rows(data, "MM-RLHF-RewardBench as JSON lines")
    rows = [_row(number, fields, where) for number, (fields, where) in enumerate(lines)]
    folder = images or data.parent
    if not with_images:
        return [replace(row, media=partial(read_within, folder, name)) for row, name in rows]
    check_media((name for _, name in rows), folder, "MM-RLHF-RewardBench")
    return [
        replace(
            row,
            pair=replace(row.pair, images=read_media(folder / name, policy=policy)),
            num_videos=int(is_video(folder / name)),
        )
        for row, name in rows
    ]


def is_mm_rlhf_row(fields: Mapping[str, Any]) -> bool:
    """Return whether a row is of this benchmark, by the category in the path of its medium."""
    media = [fields.get(name) for name in ("image", "video") if fields.get(name)]
    return bool(media) and all(isinstance(name, str) for name in media) and path_category(fields) is not None


def _row(number: int, fields: Mapping[str, Any], where: str) -> tuple[Row, str]:
    try:
        medium, texts = fields.get("image") or fields["video"], (fields["prompt"], fields["chosen"], fields["rejected"])
        if not all(isinstance(text, str) for text in (medium, *texts)):
            raise TypeError("one of them is not a string")
        row_id = str(fields["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: expected a JSON object with id, image or video, prompt, chosen, rejected ({reason(error, fields)})"
        ) from error
    group = path_category(fields) or "other"
    pair = PreferencePair(f"{row_id}#{number}", texts[0], (texts[1], texts[2]), 0, category=group, source="mm_rlhf")
    validate(pair, where=where)
    slices = {"medium": "image" if fields.get("image") else "video"}
    return Row(number, pair, group, row_id, slices, medium), medium
