"""Rows of CSV and TSV files, each with its place, so that one can be read again without the others."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.errors import DataError

MAX_CELL = 1 << 30  # characters of a cell; the library's default is less than a long answer


@dataclass(frozen=True)
class CsvRow:
    """A row: its cells by column (None: the line ends before it), the byte it begins at, and its line in the file, from 1.
    ``columns`` are those of the file's first line."""

    cells: dict[str, Any] | DataError
    offset: int
    line: int
    columns: Sequence[str]


def csv_rows(path: Path) -> Iterator[CsvRow]:
    """Yield the rows of a file, in place of one with too many cells why. Raise DataError for a file that is no CSV."""
    lines = _Lines(path)
    records = _records(path, lines)
    columns, number = next((cells for cells in records if cells), None), 0
    if columns and (twice := sorted({name for name in columns if name and columns.count(name) > 1})):
        raise DataError(f"{path}: the column {twice[0]!r} is there twice; rename one")
    while columns is not None:
        offset, line = lines.offset, lines.number + 1
        cells = next(records, None)
        if cells is None:
            return
        if cells:
            yield CsvRow(_row(path, columns, cells, number), offset, line, columns)
            number += 1


def csv_row_at(path: Path, offset: int, columns: Sequence[str], number: int) -> dict[str, Any] | DataError:
    """Return row ``number``, which begins at byte ``offset``. Raise DataError where none can be read there."""
    cells = next(_records(path, _Lines(path, offset)), [])
    if not cells:
        raise DataError(f"{path}, row {number}: is not there any more; leave a set alone while it is read")
    return _row(path, columns, cells, number)


class _Lines:
    """The lines of a file, as a parser takes them; ``offset`` and ``number`` are those of what comes next."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset, self.number = path, offset, 0

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for chunk in file:
                for line in chunk.splitlines(keepends=True):  # also at the carriage returns of older files
                    text = line.decode("utf-8-sig" if self.offset == 0 else "utf-8")
                    self.offset, self.number = self.offset + len(line), self.number + 1
                    yield text


def _records(path: Path, lines: _Lines) -> Iterator[list[str]]:
    csv.field_size_limit(MAX_CELL)  # of the process
    try:
        yield from csv.reader(iter(lines), delimiter="\t" if path.suffix == ".tsv" else ",")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not readable as CSV ({error}); save it as CSV in UTF-8") from error


def _row(path: Path, columns: Sequence[str], cells: Sequence[str], number: int) -> dict[str, Any] | DataError:
    if len(cells) > len(columns):
        return DataError(f"{path}, row {number}: has {len(cells):,} fields, expected {len(columns):,}; quote what holds commas")
    return dict(zip(columns, (*cells, *[None] * (len(columns) - len(cells))), strict=True))
