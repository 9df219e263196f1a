"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 prompts about images and videos.

Five categories by the path of the medium. Beside the accuracy over pairs, Acc+ is the share of prompts whose every pair is
right; with 46 of them its interval is wide. Rows share ids, so nothing is keyed by id here: a resume by id drops rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.media import check_media, read_media
from rewardlab.benchmarks.mm_rlhf.official import path_category
from rewardlab.data.files import read_lines
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import validate
from rewardlab.data.video import is_video
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair


def load_mm_rlhf(data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None) -> list[Row]:
    """Return the rows of the JSON lines ``id, image | video, prompt, chosen, rejected``. Response 0 is ``chosen``.

    Raise DataError for a malformed row, MediaError with the media that are missing.
    """
    if not data.is_file():
        raise DataError(f"{data}: no such file; expected MM-RLHF-RewardBench as JSON lines")
    rows = [_row(number, line, data) for number, line in enumerate(read_lines(data))]
    if not rows:
        raise DataError(f"{data}: holds no rows")
    if not with_images:
        return [row for row, _ in rows]
    folder = images or data.parent
    check_media((name for _, name in rows), folder, "MM-RLHF-RewardBench")
    return [
        replace(
            row,
            pair=replace(row.pair, images=read_media(folder / name, policy=policy)),
            num_videos=int(is_video(folder / name)),
        )
        for row, name in rows
    ]


def _row(number: int, line: str, data: Path) -> tuple[Row, str]:
    try:
        fields = json.loads(line)
        medium, texts = fields.get("image") or fields["video"], (fields["prompt"], fields["chosen"], fields["rejected"])
        if not all(isinstance(text, str) for text in (medium, *texts)):
            raise TypeError("one of them is no text")
        row_id = str(fields["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{data}, row {number}: expected a JSON object with id, image or video, prompt, chosen, rejected ({error!r})"
        ) from error
    group = path_category(fields) or "other"
    pair = PreferencePair(f"{row_id}#{number}", texts[0], (texts[1], texts[2]), 0, category=group, source="mm_rlhf")
    validate(pair, where=f"{data}, row {number}")
    slices = {"medium": "image" if fields.get("image") else "video"}
    return Row(number, pair, group, row_id, slices, medium), medium
