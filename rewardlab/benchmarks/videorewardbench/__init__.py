"""VideoRewardBench (arXiv 2509.00484): 1,563 pairs about a video each, in five groups.

What is known of it is in the paper: the groups and their sizes. Its files and scorer could not be read when this was written:
the names of its columns are guessed after its kin, other names are refused with those that are there, and there is no
official scorer here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Row
from rewardlab.benchmarks.media import NUM_FRAMES, check_media, read_media, read_within
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import validate
from rewardlab.data.video import is_video
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

COLUMNS: dict[str, tuple[str, ...]] = {
    "video": ("video", "video_path", "video_id"),
    "question": ("prompt", "question", "query"),
    "chosen": ("chosen", "chosen_response"),
    "rejected": ("rejected", "rejected_response"),
    "group": ("dimension", "category", "task_type", "type"),
}
# a word of the group's name in the file -> the group
_GROUPS = {"long": "long-form perception", "short": "short-form perception", "knowledge": "knowledge"}
_GROUPS |= {"reason": "reasoning", "safe": "safety"}


def paper_group(name: str) -> str:
    """Return one of the paper's five groups; a name of another kind stays as it is."""
    return next((group for word, group in _GROUPS.items() if word in name.lower()), name)


def load_videorewardbench(
    data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None
) -> list[Row]:
    """Return the rows of Parquet or JSON lines with :data:`COLUMNS`. Response 0 is ``chosen``. A video is a file, or a folder
    of frames.

    Raise DataError for a malformed row or unknown columns, MediaError with the videos that are missing.
    """
    rows = [_row(fields, number, f"{data}, row {number}") for number, fields in enumerate(rows_of(data))]
    if not rows:
        raise DataError(f"{data}: holds no rows")
    folder = images or data.parent
    if not with_images:
        return [replace(row, media=partial(read_within, folder, row.medium)) for row in rows]
    check_media((row.medium for row in rows), folder, "VideoRewardBench")
    read = cache(lambda name: read_media(folder / name, policy=policy))  # several pairs share a video
    return [
        replace(row, pair=replace(row.pair, images=read(row.medium)), num_videos=int(is_video(folder / row.medium)))
        for row in rows
    ]


def _row(fields: Mapping[str, Any], number: int, where: str) -> Row:
    columns = {name: next((key for key in keys if key in fields), "") for name, keys in COLUMNS.items()}
    texts = {name: fields[key] for name, key in columns.items() if key and isinstance(fields[key], str)}
    if missing := [f"{name} ({' or '.join(COLUMNS[name])})" for name in COLUMNS if name not in texts]:
        raise DataError(
            f"{where}: expected text in the fields {', '.join(missing)}; its columns are {', '.join(map(str, fields))}"
        )
    pair = PreferencePair(
        str(fields.get("id", number)),
        texts["question"],
        (texts["chosen"], texts["rejected"]),
        0,
        category=paper_group(texts["group"]),
        source="videorewardbench",
    )
    cluster = f"{texts['video']}\n{texts['question']}"
    return Row(number, validate(pair, where=where), pair.category, cluster, {}, texts["video"])


BENCHMARK = Benchmark(
    name="videorewardbench",
    load=load_videorewardbench,
    load_videos=load_videorewardbench,
    frames=NUM_FRAMES,
    sizes={
        "long-form perception": 283,
        "short-form perception": 413,
        "knowledge": 238,
        "reasoning": 278,
        "safety": 351,
    },
    origins=(
        *("VCGBench-Diverse", "MVBench", "VideoHallucer", "MMWorld", "MMVU", "Video-MMMU"),
        *("Video-MME", "MMBench-Video", "VSI-Bench", "Video-SafetyBench"),
    ),
    files=BenchmarkFiles(repo="Dragonriser/VideoRewardBench", media="videos are in the same dataset of the Hub"),
)
