"""Files of pairs: Parquet (media inside, or by content in a folder beside it; loadable by ``datasets``) and JSON lines.

What a row holds says :mod:`rewardlab.data.rows`. A set is one file, or a folder of them (shards), read in the order of their
names. Everything streams: a set larger than memory is read, checked and written a few rows at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rewardlab.data.columns import AllowedColumns
from rewardlab.data.files import json_fault, place_in_file
from rewardlab.data.images import kind_of
from rewardlab.data.parquet_batches import BUFFER_BYTES, parquet_batches
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import FRAMES, VERSION, Files, features, from_row, to_row, with_frames
from rewardlab.data.undecoded import UndecodedFiles
from rewardlab.data.unfinished import UNFINISHED, mark_unfinished
from rewardlab.errors import DataError, InputError, MediaError, OutputError
from rewardlab.types import PreferencePair

MARK = b"rewardlab_pairs"  # in a Parquet file's metadata: the version of the format; its images were checked
MEDIA_HASH = b"rewardlab_media"  # beside it: the SHA-256 of all media in the file
SHARD_ROWS = 10_000
GROUP_ROWS, GROUP_BYTES = 256, 8 << 20  # of a row group, which is read whole for any pair in it
KINDS = ".parquet, .jsonl, .csv, .tsv, .json with one list, or a dataset that `datasets` saved"
OTHER_FORM = (
    "`rewardlab data validate FILE --suggest` prints a mapping for its columns, and `rewardlab data build MAPPING.yaml "
    "--from FILE` makes pairs by it (docs/how-to/own_data.md)"
)


@dataclass(frozen=True)
class BadRow:
    """A row that is no pair: its number in the set, from 0, and why."""

    index: int
    error: InputError

    @property
    def reason(self) -> str:
        return str(self.error)


class Shard:
    """One Parquet file in the making; ``path`` is whole, when closed, or absent."""

    def __init__(self, path: Path, media: Path | None = None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = features().arrow_schema
        self._schema = schema.with_metadata({**(schema.metadata or {}), MARK: str(VERSION).encode()})
        self._table, self._path, self._media = pa.Table, path, media
        self._partial = path.with_suffix(".partial")
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = self.num_rows = 0
        self._digest = hashlib.sha256()  # of all media, by which others that take their place are noticed
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._partial, self._schema)
        except OSError as error:
            raise unwritable(path, error) from error

    def add(self, pair: PreferencePair) -> None:
        row = to_row(pair)
        lists = (row["images"], row["videos"], *row["response_images"])
        for entries in lists:
            for entry in entries:
                self._bytes += len(entry["bytes"])
                self._digest.update(hashlib.sha256(entry["bytes"]).digest())
        if self._media is not None:
            for entries in lists:
                for entry in entries:
                    entry["path"], entry["bytes"] = _store_media(entry["bytes"], self._media, self._path.parent), None
        self._rows.append(row)
        self.num_rows += 1
        if len(self._rows) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        """Write what is left and move the file into its place."""
        if self._rows or not self.num_rows:
            self._flush()
        try:
            self._writer.add_key_value_metadata({MEDIA_HASH: self._digest.hexdigest().encode()})
            self._writer.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise unwritable(self._path, error) from error


def unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written ({error}); choose a writable folder")


def _store_media(data: bytes, media: Path, base: Path) -> str:
    """Put a file into the media folder, by its content; its path from ``base``."""
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
    """Write all pairs, media inside, by way of a temporary file: ``path`` is whole or absent. Returns how many.

    Raises OutputError.
    """
    shard = Shard(path)
    for pair in pairs:
        shard.add(pair)
    shard.close()
    return shard.num_rows


def write_shards(
    pairs: Iterable[PreferencePair], folder: Path, *, rows_per_shard: int = SHARD_ROWS, embed: bool = True
) -> Iterator[Path]:
    """Write pairs as :func:`write_parts` does, into a folder that is no set until the last file has been taken: whatever ends
    it before, the folder stays marked. Raises what :func:`rewardlab.data.unfinished.mark_unfinished` raises."""
    with mark_unfinished(folder):
        yield from write_parts(pairs, folder, rows_per_shard=rows_per_shard, embed=embed)


def write_parts(
    pairs: Iterable[PreferencePair], folder: Path, *, rows_per_shard: int = SHARD_ROWS, embed: bool = True
) -> Iterator[Path]:
    """Write pairs as ``part-00000.parquet`` and so on; yields each file once it is whole, and takes pairs as it is asked for
    the next. Without ``embed`` media go into ``folder/media``, each once, named by its SHA-256. Raises OutputError. The folder
    is whoever calls this to mark."""
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
    number, partial = 0, path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            for number, pair in enumerate(pairs, start=1):  # noqa: B007
                row = {name: value for name, value in to_row(pair).items() if value not in ("", None, [], [[], []])}
                for name in ("images", "videos"):
                    if name in row:
                        row[name] = [_store_media(entry["bytes"], path.parent / "media", path.parent) for entry in row[name]]
                if "response_images" in row:
                    row["response_images"] = [
                        [_store_media(entry["bytes"], path.parent / "media", path.parent) for entry in entries]
                        for entries in row["response_images"]
                    ]
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    return number


def files_of(path: Path) -> list[Path]:
    """Return the data files of a set: itself, or a folder's Parquet files by name, or else its JSON lines. Raises DataError."""
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob("*.parquet")) or sorted(path.rglob("*.jsonl"))
    if marked := sorted(folder for folder in {path, *(file.parent for file in files)} if (folder / UNFINISHED).exists()):
        raise DataError(f"{marked[0]}: is not whole, for the command that writes it was cut off; run that command again")
    if not files:
        saved = "; `rewardlab data build MAPPING.yaml` makes pairs of its .arrow files" if any(path.rglob("*.arrow")) else ""
        tables = [f"; name {file}" for file in sorted(path.iterdir()) if file.suffix in (".csv", ".tsv", ".json")]
        raise DataError(f"{path}: a folder without .parquet or .jsonl files{saved or ''.join(tables[:1])}")
    return files


def pair_files_of(path: Path) -> list[Path]:
    """Return the files of a set of pairs. Raises DataError where one is not there, or is of another kind."""
    files = files_of(path)
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file; expected pairs as {KINDS}")
        if file.suffix not in (".parquet", ".jsonl"):
            raise DataError(f"{file}: expected pairs as {KINDS}")
    return files


def unreadable_parquet(path: Path, error: Exception) -> DataError:
    """Return the error of a file that is damaged or of another kind, in one line."""
    return DataError(f"{path}: not a readable Parquet file ({' '.join(str(error).split())}); write or download it again")


def rows_of(path: Path) -> Generator[Mapping[str, Any], None, None]:
    """Yield the raw rows of a ``.parquet`` or ``.jsonl`` file, or of a folder's files in the order of their names, one at a
    time.

    Raises DataError where it is neither.
    """
    for file in files_of(path):
        yield from _rows_of_parquet(file) if file.suffix == ".parquet" else _rows_of_lines(file)


def _rows_of_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
            for batch in parquet_batches(file):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise unreadable_parquet(path, error) from error


def lines_of(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | DataError]]:
    """Yield the line, from 1, and the object of JSON lines, and in place of a line that is none, why. Raises DataError where
    there is no file."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected .parquet or JSON lines")
    # Bytes that are no UTF-8 become lone surrogates, which no row may hold: the row is bad, not the file.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, parse_line(line, path, number)


def parse_line(line: str, path: Path, number: int) -> Mapping[str, Any] | DataError:
    """Return what a line holds, or why it holds nothing."""
    try:
        line.encode()
        row: Mapping[str, Any] = json.loads(line)
    except UnicodeEncodeError:  # what stands for a byte that is no UTF-8
        return DataError(f"{path}, line {number}: not UTF-8; save the file in that encoding")
    except ValueError as error:
        return DataError(f"{path}, line {number}: not JSON ({json_fault(error)}); expected one object a line")
    except RecursionError:
        return DataError(f"{path}, line {number}: not JSON that can be read (nested too deeply)")
    return row


def _rows_of_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for _, row in lines_of(path):
        if isinstance(row, DataError):
            raise row
        yield row


def is_checked(path: Path) -> bool:
    """Return whether a file's embedded images were checked when it was written."""
    if path.suffix != ".parquet":
        return False
    import pyarrow.parquet as pq  # of Parquet alone

    try:
        return MARK in (pq.read_schema(path).metadata or {})
    except (OSError, ValueError) as error:
        raise unreadable_parquet(path, error) from error


def read_row(
    row: Mapping[str, Any] | DataError,
    *,
    index: int,
    files: Files,
    path: Path,
    columns: AllowedColumns | None = None,
    place: str = "",
) -> PreferencePair | BadRow:
    """Return row ``index`` of the set ``path`` as a pair, its videos as they are, or the reason why it is none; ``place`` as
    :func:`rewardlab.data.files.place_in_file` gives it."""
    try:
        if isinstance(row, DataError):
            raise row
        return from_row(row, index=index, files=files, where=f"{path}, row", columns=columns, place=place)
    except RecursionError:
        return BadRow(index, DataError(f"{path}, row {index}{place}: nested too deeply to be read"))
    except (DataError, MediaError) as error:
        other_form = isinstance(row, Mapping) and "responses" not in row
        return BadRow(index, DataError(f"{error}; {OTHER_FORM}") if other_form else error)


def validate_rows(
    path: Path,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
    undecodable: dict[bytes, str] | None = None,
    decode: bool = False,
) -> Generator[PreferencePair | BadRow, None, None]:
    """Yield every row of a set as a pair, or the reason why it is none; also of CSV, JSON, a saved dataset and other columns,
    where :mod:`rewardlab.data.guessed_mapping` finds one way to read them. ``allow_columns``: that are not read and may be
    there, by name, or "all" without media. ``undecodable``: where nobody looks at images, takes those that cannot be decoded,
    with the reason; None: such a row is bad. ``decode``: embedded images are decoded also in a file that says that they were
    checked when it was written. Raises DataError for a file that cannot be read."""
    from rewardlab.data.guessed_mapping import data_files_of, rows_in_pair_form  # which reads by way of this module

    index, columns = 0, AllowedColumns.of(allow_columns)
    for file in data_files_of(path):
        folder, checked = images or file.parent, is_checked(file) and not decode
        files = Files(folder, checked) if undecodable is None else UndecodedFiles(folder, checked, undecodable=undecodable)
        with closing(rows_in_pair_form(file)) as rows:  # a bad row leaves the file at once, not when memory is swept
            for stored in rows:
                place = place_in_file(path, file, stored.line)
                yield read_row(stored.row, index=index, files=files, path=path, columns=columns, place=place)
                index += 1


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
    """Yield the pairs of a set, one at a time, of videos ``frames`` (None: videos as they are), by ``policy`` as a judge's
    family samples them; relative media paths start at ``images`` or else beside the file; ``allow_columns``, ``undecodable``
    and ``decode`` as :func:`validate_rows` takes them. Raises DataError (or MediaError) at the first bad row.
    """
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
    """Return all pairs of a set, as :func:`stream_pairs` gives them. Raises DataError also for a set without any."""
    folder = None if images is None else Path(images)
    further: dict[str, Any] = {"policy": policy, "allow_columns": allow_columns, "undecodable": undecodable}
    pairs = list(stream_pairs(Path(path), images=folder, frames=frames, **further))
    if not pairs:
        raise DataError(f"{path}: holds no pairs")
    return pairs


class PairSet:
    """A set on disk, to be gone through any number of times without being held in memory: the first ``limit`` pairs of it.

    Raises what :func:`stream_pairs` raises, when it is gone through.
    """

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
