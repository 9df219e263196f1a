"""Images and videos of a benchmark: all there, or all missing in one sentence. A video is a file or a folder of frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from rewardlab.data.files import leads_out
from rewardlab.data.images import plain_image, read_image
from rewardlab.data.parquet import unreadable_parquet
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import files_of
from rewardlab.data.video import evenly, frame_files, frames_of_video, is_video
from rewardlab.errors import DataError, MediaError

NUM_FRAMES = 32  # of a video, spread evenly, as MM-RLHF-RewardBench samples them


def check_media(names: Iterable[str], folder: Path, benchmark: str) -> None:
    """Raise MediaError with the number and the first of the files and folders that are not there, or lead out of ``folder``."""
    wanted = sorted(set(names))
    if outside := [name for name in wanted if leads_out(name)]:
        raise MediaError(f"{outside[0]:.160} is outside {folder}; all media of {benchmark} must be in one folder")
    missing = [name for name in wanted if not _stands(folder / name)]
    if missing:
        first = ", ".join(repr(name) for name in missing[:3])
        raise MediaError(
            f"{len(missing):,} of {len(wanted):,} media files are not in {folder}, the first {first}; download the media of "
            f"{benchmark} and name the folder that holds them with --images (a video is a file, or a folder of its frames)"
        )


def read_within(folder: Path, name: str) -> tuple[bytes, ...]:
    """Return :func:`read_media` of a path below ``folder``. Raise MediaError also for one that is outside it."""
    if leads_out(name):
        raise MediaError(f"{name:.160} is outside {folder}")
    return read_media(folder / name)


def embedded_image(data: Path, column: str, number: int) -> tuple[bytes, ...]:
    """Return the image within row ``number`` of a Parquet file, or of a folder's files in the order of their names. Raise
    InputError where it is not there any more, or is none."""
    where, first = f"{data}, row {number}", 0
    for file in files_of(data):
        starts = _group_starts(file)
        if number - first < starts[-1]:
            group = bisect_right(starts, number - first) - 1
            image = _group_column(file, group, column)[number - first - starts[group]].as_py()
            return (plain_image((image or {}).get("bytes") or b"", where=where),)
        first += starts[-1]
    raise DataError(f"{where}: no longer exists; do not change a data file while it is being read")


@lru_cache(maxsize=64)
def _group_starts(file: Path) -> list[int]:
    """Return the first row of each row group, and behind them the number of rows."""
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(file)
    except (OSError, ValueError) as error:
        raise unreadable_parquet(file, error) from error
    return list(accumulate((metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)), initial=0))


@lru_cache(maxsize=1)  # a page shows rows in their order: a group is read once, and one of them is in memory
def _group_column(file: Path, group: int, column: str) -> Any:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            return table.read_row_group(group, columns=[column], use_threads=False).column(column)
    except (OSError, ValueError, KeyError) as error:
        raise unreadable_parquet(file, error) from error


def _stands(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and bool(frame_files(path)))


def read_media(path: Path, num_frames: int = NUM_FRAMES, *, policy: VideoPolicy | None = None) -> tuple[bytes, ...]:
    """An image, or at most ``num_frames`` frames of a video, by ``policy`` as a judge's family samples them, or of a folder of
    frames, evenly spread. Raises MediaError."""
    if is_video(path) and path.is_file():
        return frames_of_video(path, num_frames, policy=policy() if policy else None)
    return tuple(read_image(image) for image in (evenly(frame_files(path), num_frames) if path.is_dir() else [path]))
