"""Files of pairs: Parquet (media inside, or by content in a folder beside it; loadable by ``datasets``) and JSON lines.

:mod:`rewardlab.data.rows` defines a row. Everything streams: a set larger than memory is read, checked and written a few rows
at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rewardlab.data.column_mapping import rows_in_pair_form
from rewardlab.data.columns import AllowedColumns
from rewardlab.data.conversations import has_written_mark
from rewardlab.data.files import lock_file, mark_unfinished, place_in_file
from rewardlab.data.images import kind_of
from rewardlab.data.media import Files
from rewardlab.data.parquet import TableFile, unwritable
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import MARK, data_files_of, is_checked
from rewardlab.data.rows import FRAMES, VERSION, features, from_row, to_row, with_frames
from rewardlab.errors import DataError, InputError, MediaError
from rewardlab.types import PreferencePair

MEDIA_HASH = b"rewardlab_media"  # in the metadata of a Parquet file: the SHA-256 of all media in the file
SHARD_ROWS = 10_000
GROUP_ROWS = 256  # of a row group
OTHER_FORM = (
    "`rewardlab data validate FILE --suggest` prints a mapping for its columns, and `rewardlab data build MAPPING.yaml "
    "--from FILE` makes pairs by it (docs/how-to/own_data.md)"
)


@dataclass(frozen=True)
class BadRow:
    """A row that is not a valid pair: its number in the set, from 0, and why."""

    index: int
    error: InputError

    @property
    def reason(self) -> str:
        return str(self.error)


def with_unique_ids(pairs: Iterable[PreferencePair], path: Path) -> Iterator[PreferencePair]:
    """Yield the pairs of the set ``path``. Raise DataError for an id that an earlier pair has: nobody could say which of them
    a vote or a judgment is for."""
    ids: set[int] = set()  # hashes: ids themselves would take too much memory
    for number, pair in enumerate(pairs):
        if (key := hash(pair.pair_id)) in ids:
            raise DataError(
                f"{path}, row {number}: pair_id {pair.pair_id!r:.80} appears twice; every pair needs its own. Rename it, or "
                "drop the column: pairs without an id are numbered"
            )
        ids.add(key)
        yield pair


class Shard:
    """One Parquet file in the making; ``path`` is whole, when closed, or absent. Media go into the file, or with ``media`` into
    that folder, named by their SHA-256."""

    def __init__(self, path: Path, media: Path | None = None) -> None:
        schema = features().arrow_schema
        schema = schema.with_metadata({**(schema.metadata or {}), MARK: str(VERSION).encode()})
        self._path, self._media, self._table = path, media, TableFile(path, schema, group_rows=GROUP_ROWS)
        self._digest = hashlib.sha256()  # of all media, to notice others in their place

    @property
    def num_rows(self) -> int:
        return self._table.num_rows

    def add(self, pair: PreferencePair) -> None:
        row, num_bytes = to_row(pair), 0
        for entry in chain(row["images"], row["videos"], *row["response_images"], *row["response_videos"]):
            num_bytes += len(entry["bytes"])
            self._digest.update(hashlib.sha256(entry["bytes"]).digest())
            if self._media is not None:
                entry["path"], entry["bytes"] = _store_media(entry["bytes"], self._media, self._path.parent), None
        self._table.add(row, num_bytes)

    def close(self) -> None:
        """Write what is left and move the file into its place."""
        self._table.close({MEDIA_HASH: self._digest.hexdigest().encode()})


def _store_media(data: bytes, media: Path, base: Path) -> str:
    """Store a file in the media folder, named by its content; return its path relative to ``base``."""
    digest = hashlib.sha256(data).hexdigest()
    path = media / digest[:2] / f"{digest}.{kind_of(data)}"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(data)
            partial.replace(path)
        except OSError as error:
            raise unwritable(path, error) from error
    return str(path.relative_to(base))


def write_parquet(pairs: Iterable[PreferencePair], path: Path) -> int:
    """Write all pairs, media inside; return their number. ``path`` is whole or absent. Raises OutputError."""
    shard = Shard(path)
    for pair in pairs:
        shard.add(pair)
    shard.close()
    return shard.num_rows


def write_shards(
    pairs: Iterable[PreferencePair], folder: Path, *, rows_per_shard: int = SHARD_ROWS, embed: bool = True
) -> Iterator[Path]:
    """Write pairs as :func:`write_parts` does; the folder is marked as unfinished until the last file has been taken.
    Raises what :func:`rewardlab.data.files.mark_unfinished` raises."""
    with mark_unfinished(folder):
        yield from write_parts(pairs, folder, rows_per_shard=rows_per_shard, embed=embed)


def write_parts(
    pairs: Iterable[PreferencePair], folder: Path, *, rows_per_shard: int = SHARD_ROWS, embed: bool = True
) -> Iterator[Path]:
    """Write pairs lazily as ``part-00000.parquet`` and so on; yield each file once it is whole. Without ``embed`` media go into
    ``folder/media``, each once, named by its SHA-256. The caller marks the folder as unfinished. Raises OutputError."""
    media, shard, number = None if embed else folder / "media", None, 0
    for pair in pairs:
        shard = shard or Shard(folder / f"part-{number:05d}.parquet", media)
        shard.add(pair)
        if shard.num_rows >= rows_per_shard:
            shard.close()
            yield folder / f"part-{number:05d}.parquet"
            shard, number = None, number + 1
    if shard is not None:
        shard.close()
        yield folder / f"part-{number:05d}.parquet"


def write_jsonl(pairs: Iterable[PreferencePair], path: Path) -> int:
    """Write pairs as JSON lines, media in a folder ``media`` beside the file; return how many. Raises OutputError."""

    def paths(entries: list[dict[str, bytes]]) -> list[str]:
        return [_store_media(entry["bytes"], path.parent / "media", path.parent) for entry in entries]

    number, partial = 0, path.with_name(f".{path.name}.partial")
    lock = lock_file(partial, path)
    try:
        with partial.open("w", encoding="utf-8") as file:
            for number, pair in enumerate(pairs, start=1):  # noqa: B007
                row = {name: value for name, value in to_row(pair).items() if value not in ("", None, [], [[], []])}
                if any(map(has_written_mark, pair.responses)):
                    row.setdefault("response_images", [[], []])
                for name in {"images", "videos"} & row.keys():
                    row[name] = paths(row[name])
                for name in {"response_images", "response_videos"} & row.keys():
                    row[name] = [paths(entries) for entries in row[name]]
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        os.close(lock)
    return number


def read_row(
    row: Mapping[str, Any] | DataError,
    *,
    index: int,
    files: Files,
    path: Path,
    columns: AllowedColumns | None = None,
    place: str = "",
) -> PreferencePair | BadRow:
    """Return row ``index`` of the set ``path`` as a pair, its videos as files, or why it is none; ``place`` as
    :func:`rewardlab.data.files.place_in_file` returns it."""
    try:
        if isinstance(row, DataError):
            raise row
        return from_row(row, index=index, files=files, where=f"{path}, row", columns=columns, place=place)
    except RecursionError:
        return BadRow(index, DataError(f"{path}, row {index}{place}: nested too deeply to be read"))
    except (DataError, MediaError) as error:
        other_form = isinstance(row, Mapping) and ("responses" not in row or _is_ranked(row))
        return BadRow(index, DataError(f"{error}; {OTHER_FORM}") if other_form else error)


def _is_ranked(row: Mapping[str, Any]) -> bool:
    """Return whether a row has three responses or more, and another list of that length, such as their ranks."""
    lengths = [len(value) for name, value in row.items() if isinstance(value, list) and name != "responses"]
    return isinstance(row["responses"], list) and len(row["responses"]) > 2 and len(row["responses"]) in lengths


def validate_rows(
    path: Path,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
    undecodable: dict[bytes, str] | None = None,
    decode: bool = False,
) -> Generator[PreferencePair | BadRow, None, None]:
    """Yield every row of a set as a pair, or the reason why it is none. ``allow_columns``: columns that may be there and are
    not read, by name, or "all" without media; ``undecodable`` as :class:`rewardlab.data.rows.Files` has it. ``decode``: decode
    videos, and embedded images although they were checked when the file was written. Raises DataError for a file that cannot
    be read, ConfigError if videos cannot be decoded because a package is missing."""
    index, columns = 0, AllowedColumns.of(allow_columns)
    for file in data_files_of(path):
        files = Files(images or file.parent, is_checked(file) and not decode, undecodable=undecodable)
        with closing(rows_in_pair_form(file)) as rows:  # a bad row closes the file at once, not at garbage collection
            for stored in rows:
                place = place_in_file(path, file, stored.line)
                pair = read_row(stored.row, index=index, files=files, path=path, columns=columns, place=place)
                yield _with_readable_videos(pair, index, f"{path}, row {index}{place}") if decode else pair
                index += 1


def _with_readable_videos(pair: PreferencePair | BadRow, index: int, where: str) -> PreferencePair | BadRow:
    """Return the pair, or why one of its videos cannot be decoded."""
    try:
        if not isinstance(pair, BadRow):
            with_frames(pair, 1, where=where)
    except MediaError as error:
        return BadRow(index, error)
    return pair


def stream_pairs(
    path: Path,
    *,
    images: Path | None = None,
    frames: int | None = FRAMES,
    policy: VideoPolicy | None = None,
    allow_columns: Collection[str] = (),
    undecodable: dict[bytes, str] | None = None,
    decode: bool = False,
) -> Generator[PreferencePair, None, None]:
    """Yield the pairs of a set, one at a time. Videos become ``frames`` (None: they stay files), sampled by ``policy``;
    relative media paths start at ``images``, or at the file's folder; further options as :func:`validate_rows` takes them.
    Raises DataError or MediaError at the first bad row."""
    rows = validate_rows(path, images=images, allow_columns=allow_columns, undecodable=undecodable, decode=decode)
    for index, item in enumerate(rows):
        if isinstance(item, BadRow):
            raise item.error
        yield item if frames is None else with_frames(item, frames, where=f"{path}, row {index}", policy=policy)


def read_pairs(
    path: str | Path,
    *,
    images: str | Path | None = None,
    frames: int | None = FRAMES,
    policy: VideoPolicy | None = None,
    allow_columns: Collection[str] = (),
    undecodable: dict[bytes, str] | None = None,
) -> list[PreferencePair]:
    """Return all pairs of a set, as :func:`stream_pairs` yields them. Raises DataError also for an empty set."""
    folder = None if images is None else Path(images)
    further: dict[str, Any] = {"policy": policy, "allow_columns": allow_columns, "undecodable": undecodable}
    pairs = list(stream_pairs(Path(path), images=folder, frames=frames, **further))
    if not pairs:
        raise DataError(f"{path}: holds no pairs")
    return pairs


class PairSet:
    """The first ``limit`` pairs of a set on disk, to be iterated any number of times without holding them in memory. Iterating
    raises what :func:`stream_pairs` raises."""

    def __init__(
        self,
        path: Path,
        *,
        images: Path | None = None,
        frames: int | None = FRAMES,
        limit: int | None = None,
        allow_columns: Collection[str] = (),
    ) -> None:
        self.path, self._limit = path, limit
        self._stream = partial(stream_pairs, path, images=images, frames=frames, allow_columns=allow_columns)

    def __iter__(self) -> Iterator[PreferencePair]:
        with closing(self._stream()) as pairs:
            yield from islice(pairs, self._limit)
