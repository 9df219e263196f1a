"""Files of rows that are read by number, whatever their form: Parquet, JSON lines, CSV, a JSON list, what ``datasets`` saved.

Each gives its rows with the columns of a pair, by :class:`rewardlab.data.guessed_mapping.PairForm`: what training reads is what
a benchmark reads.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rewardlab.data.columns import PAIR_COLUMNS
from rewardlab.data.csv_rows import csv_row_at, csv_rows
from rewardlab.data.guessed_mapping import FileRow, PairForm, stored_rows
from rewardlab.data.pairs import MEDIA_HASH, is_checked, parse_line, unreadable_parquet
from rewardlab.data.parquet_batches import parquet_batches
from rewardlab.errors import DataError, InputError
from rewardlab.reporting.progress import log_line

MEDIA = ("images", "response_images", "videos")
MOST_GROUP_BYTES, LARGE_GROUP_BYTES = 512 << 20, 24 << 20  # of a row group, which is read whole for any pair in it
MOST_HELD_BYTES = 1 << 30  # of a file whose rows are all in memory
REWRITE = "`rewardlab data convert FILE --out FOLDER` writes it anew, in small ones"


class RowFile(Protocol):
    """A file of rows. ``checked``: embedded images were looked at when it was written. Only once :meth:`light_rows` has been
    gone through to its end are the number of rows and each row known, except of Parquet."""

    path: Path
    checked: bool

    def __len__(self) -> int: ...

    def row(self, number: int) -> FileRow:
        """Return row ``number``, from 0, in pair form. Raise DataError for a file that has changed."""
        ...

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        """Yield all rows in pair form. Bytes of media may be left out; with ``by_content`` only those that
        :meth:`identity` tells."""
        ...

    def identity(self) -> bytes:
        """Return what changes with embedded media, where rows do not tell."""
        ...


def open_rows(path: Path) -> RowFile:
    """Return the rows of a file by what its name ends in. Raise DataError for one that cannot be read."""
    kinds: dict[str, Callable[[Path], RowFile]] = {
        ".parquet": ParquetRows,
        ".jsonl": LineRows,
        ".csv": CsvRows,
        ".tsv": CsvRows,
    }
    return kinds.get(path.suffix, HeldRows)(path)


def _is_bytes(column: str) -> bool:
    """Whether a leaf of a Parquet schema holds the bytes of media: of a list of structs, or of one."""
    return "." in column and column.rpartition(".")[2] == "bytes"


class ParquetRows:
    """Rows of a Parquet file by number; the row group last read stays in memory, one for each thread."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path, self.checked = path, is_checked(path)
        try:
            self._metadata = pq.read_metadata(path)
        except (OSError, ValueError) as error:
            raise unreadable_parquet(path, error) from error
        groups = [self._metadata.row_group(n) for n in range(self._metadata.num_row_groups)]
        self._form = PairForm.of(path, self._metadata.schema.to_arrow_schema().names)
        self._media = {*MEDIA, *self._form.media_columns}
        self._mixes_paths = {name for name in self._media if _holds(groups, name, "bytes") and _holds(groups, name, "path")}
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self._columns = [self._metadata.schema.column(n).path for n in range(len(self._metadata.schema))]
        largest = max((group.total_byte_size for group in groups), default=0)
        if largest > MOST_GROUP_BYTES:
            raise DataError(f"{path}: a row group of {largest >> 20:,} MiB is read whole for each of its pairs; {REWRITE}")
        if largest > LARGE_GROUP_BYTES:
            log_line(f"{path}: row groups of up to {largest >> 20} MiB make reading slow; {REWRITE}")
        self._local = threading.local()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def _file(self) -> Any:
        import pyarrow.parquet as pq

        with self._readable():
            return pq.ParquetFile(self.path, metadata=self._metadata)  # mapped pages would count as this process's memory

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # damaged, or changed while it is read
            if isinstance(error, InputError):
                raise
            raise unreadable_parquet(self.path, error) from error

    def row(self, number: int) -> FileRow:
        group = bisect_right(self._starts, number) - 1
        if getattr(self._local, "group", None) != group:
            with self._file() as file, self._readable():
                self._local.table, self._local.group = file.read_row_group(group, use_threads=False), group
        rows: list[dict[str, Any]] = self._local.table.slice(number - self._starts[group], 1).to_pylist()
        return self._form.of_row(FileRow(rows[0]), f"{self.path}, row {number}")

    def _is_read(self, column: str, by_content: bool) -> bool:
        """Whether a column is read for its texts: of media that a hash in the file names, their paths alone. Where a file holds
        bytes and paths, only the bytes say which paths count."""
        name = column.partition(".")[0]
        if name in PAIR_COLUMNS and name not in self._media:
            return True
        is_needed = name in self._media and by_content and (not self.checked or name in self._mixes_paths)
        return is_needed or not _is_bytes(column)

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        """Yield all rows without the bytes of media; with ``by_content``, with those in a file that another program wrote."""
        columns = [column for column in self._columns if self._is_read(column, by_content)]
        with self._file() as file, self._readable():
            number = 0
            for batch in parquet_batches(file, columns):
                for row in batch.to_pylist():
                    yield self._form.of_row(FileRow(row), f"{self.path}, row {number}")
                    number += 1

    def identity(self) -> bytes:
        """Return what changes with media: their hash, or in files of older versions the sizes of their columns."""
        if media := (self._metadata.metadata or {}).get(MEDIA_HASH):
            return bytes(media)
        groups = [self._metadata.row_group(n) for n in range(self._metadata.num_row_groups)]
        numbers = [n for n, column in enumerate(self._columns) if column.endswith(".bytes")]
        return repr([(group.num_rows, [group.column(n).total_uncompressed_size for n in numbers]) for group in groups]).encode()


def _holds(groups: Sequence[Any], name: str, leaf: str) -> bool:
    """Whether a leaf (``bytes`` or ``path``) of the media column ``name`` has any value; also where a file does not say."""
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            path = column.path_in_schema
            if path.startswith(f"{name}.") and path.endswith(f".{leaf}"):
                counts = column.statistics
                if counts is None or not counts.has_null_count or counts.null_count < column.num_values:
                    return True
    return False


class LineRows:
    """Rows of JSON lines: their places in the file are in memory, 16 bytes each."""

    checked = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._form: PairForm | None = None  # as the first row has it
        self._offsets = self._lines = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._offsets)

    def row(self, number: int) -> FileRow:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offsets[number])
                line = int(self._lines[number])
                stored = FileRow(parse_line(_text_of(file.readline()), self.path, line), line)
        except OSError as error:
            raise _gone(self.path, error) from error
        return (self._form or PairForm()).of_row(stored, f"{self.path}, row {number} (line {line})")

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        """Yield all rows as they are: their media are paths."""
        offsets, lines, place = list[int](), list[int](), 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = _text_of(line)
                if text.strip():
                    row = parse_line(text, self.path, number)
                    if self._form is None and isinstance(row, Mapping):
                        self._form = PairForm.of(self.path, list(row))
                    where = f"{self.path}, row {len(lines)} (line {number})"
                    yield (self._form or PairForm()).of_row(FileRow(row, number), where)
                    offsets.append(place)
                    lines.append(number)
                place += len(line)
        self._offsets, self._lines = np.array(offsets, dtype=np.int64), np.array(lines, dtype=np.int64)

    def identity(self) -> bytes:
        return b""


def _text_of(line: bytes) -> str:
    return line.decode("utf-8-sig", "surrogateescape")


def _gone(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read any more ({error.strerror})")


class CsvRows:
    """Rows of CSV or TSV: their places in the file are in memory, 16 bytes each."""

    checked = False

    def __init__(self, path: Path) -> None:
        self.path, self._form, self._columns = path, PairForm(), list[str]()  # both by the file's first line
        self._offsets = self._lines = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._offsets)

    def row(self, number: int) -> FileRow:
        line = int(self._lines[number])
        cells = csv_row_at(self.path, int(self._offsets[number]), self._columns, number, line)
        return self._form.of_row(FileRow(cells, line), f"{self.path}, row {number} (line {line})")

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        """Yield all rows: their media are paths."""
        offsets, lines = list[int](), list[int]()
        for number, row in enumerate(csv_rows(self.path)):
            if not self._columns:
                self._columns, self._form = list(row.columns), PairForm.of(self.path, row.columns)
            yield self._form.of_row(FileRow(row.cells, row.line), f"{self.path}, row {number} (line {row.line})")
            offsets.append(row.offset)
            lines.append(row.line)
        self._offsets, self._lines = np.array(offsets, dtype=np.int64), np.array(lines, dtype=np.int64)

    def identity(self) -> bytes:
        return b""


class HeldRows:
    """Rows of a JSON list or of an Arrow file, all of them in memory, media and all: a set that is too large for that is to be
    converted first."""

    checked = False

    def __init__(self, path: Path) -> None:
        self.path = path
        if (size := path.stat().st_size) > MOST_HELD_BYTES:
            raise DataError(f"{path}: its {size >> 20:,} MiB would all be held in memory; {REWRITE}")
        self._rows = list(stored_rows(path))
        columns = next((list(map(str, stored.row)) for stored in self._rows if isinstance(stored.row, Mapping)), [])
        self._form = PairForm.of(path, columns)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> FileRow:
        return self._form.of_row(self._rows[number], f"{self.path}, row {number}")

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        yield from map(self.row, range(len(self)))

    def identity(self) -> bytes:
        return b""
