"""Rows of benchmarks whose answers are images or videos, which a row embeds or names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.media import check_media, read_media, read_within
from rewardlab.data.images import plain_image
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import FRAMES, validate
from rewardlab.data.video import is_video
from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, PreferencePair, Tie

Medium = bytes | str  # an encoded image, or the path of an image, of a video, or of a folder of a video's frames


@dataclass(frozen=True)
class MediaRow:
    """A row whose texts have one ``IMAGE_MARK`` for each of its media; a video's becomes one for each of its frames."""

    row: Row
    question: tuple[Medium, ...] = ()
    answers: tuple[tuple[Medium, ...], tuple[Medium, ...]] = ((), ())
    frames: int = FRAMES  # the most that are shown of a video

    @property
    def names(self) -> tuple[str, ...]:
        """Return the paths among the media."""
        return tuple(medium for medium in (*self.question, *self.answers[0], *self.answers[1]) if isinstance(medium, str))


def medium_of(value: Any, column: str) -> Medium:
    """Return the image that a cell embeds, or the path it names. Raise ValueError if it is empty or of another kind."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes | str) and value:
        return value
    raise ValueError(f"{column!r} holds no image and no path")


def text_of(fields: Mapping[str, Any], column: str) -> str:
    """Return a cell's text without placeholders of media. Raise KeyError if there is none, ValueError for no text."""
    if not isinstance(value := fields[column], str):
        raise ValueError(f"{column!r} is not a text")
    return value.replace(IMAGE_MARK, "").replace(VIDEO_MARK, "")


def data_rows(files: Sequence[Path]) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    """Yield (number over all files, fields, the place to name in an error) of files in any form that pairs are read from. Raise
    DataError, also if there are no rows."""
    number = -1
    for file in files:
        for in_file, fields in enumerate(rows_of(file)):
            number += 1
            yield number, fields, f"{file}, row {in_file}"
    if number < 0:
        raise DataError(f"{', '.join(map(str, files))}: no rows")


def labelled_pair(pair_id: str, question: str, responses: tuple[str, str], label: int | Tie, **fields: Any) -> PreferencePair:
    """Return a pair with the label of a benchmark: the better response, or why there is none."""
    preferred, tie = (None, label) if isinstance(label, Tie) else (label, None)
    return PreferencePair(pair_id, question, responses, preferred, tie=tie, **fields)


def checked(row: MediaRow, where: str) -> MediaRow:
    """Return a row whose pair is valid. Raise DataError."""
    validate(row.row.pair, where=where)
    return row


def load_media(
    rows: Iterable[MediaRow], folder: Path, benchmark: str, *, with_images: bool, policy: VideoPolicy | None = None
) -> list[Row]:
    """Return the rows with their media, or without for a judge that does not look. Raise MediaError with those missing."""
    if not with_images:
        return [replace(source.row, media=_page_media(source, folder)) for source in rows]
    sources = list(rows)
    check_media((name for source in sources for name in source.names), folder, benchmark)

    @cache  # many pairs share a video
    def read_file(name: str, frames: int) -> tuple[bytes, ...]:
        return read_media(folder / name, frames, policy=policy)

    def placed(text: str, media: Sequence[Medium], source: MediaRow) -> tuple[str, tuple[bytes, ...]]:
        where = f"row {source.row.row}"
        read = [
            read_file(medium, source.frames) if isinstance(medium, str) else (plain_image(medium, where=where),)
            for medium in media
        ]
        first, *others = text.split(IMAGE_MARK)
        marked = first + "".join(IMAGE_MARK * len(images) + rest for images, rest in zip(read, others, strict=True))
        return marked, tuple(image for images in read for image in images)

    def with_media(source: MediaRow) -> Row:
        pair = source.row.pair
        question, images = placed(pair.question, source.question, source)
        (first, first_images), (second, second_images) = (
            placed(text, media, source) for text, media in zip(pair.responses, source.answers, strict=True)
        )
        complete = replace(
            pair,
            question=question,
            images=images,
            responses=(first, second),
            response_images=(first_images, second_images),
        )
        return replace(source.row, pair=complete, num_videos=sum(is_video(folder / name) for name in source.names))

    return [with_media(source) for source in sources]


def _page_media(source: MediaRow, folder: Path) -> Callable[[], tuple[bytes, ...]] | None:
    """Return what reads the image of a question for the page, if it is a file."""
    names = [name for name in source.question if isinstance(name, str)]
    return partial(read_within, folder, names[0]) if names else None
