"""Rows of CSV and TSV files, each with its place, so that one can be read again without the others."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.errors import DataError

_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}  # of what may separate columns
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
    """Yield the rows of a file, in place of one with too many cells or a NUL why. Raise DataError for a file that is no CSV,
    has another separator, or a quote that leaves open where its cell ends."""
    _check_separator(path, next(filter(None, _records(path, _Lines(path), strict=False)), []))
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
            yield CsvRow(_row(path, columns, cells, number, line), offset, line, columns)
            number += 1


def csv_row_at(path: Path, offset: int, columns: Sequence[str], number: int, line: int) -> dict[str, Any] | DataError:
    """Return row ``number``, which begins at byte ``offset``, in ``line`` of the file. Raise DataError where none can be read
    there."""
    cells = next(_records(path, _Lines(path, offset, line - 1)), [])
    if not cells:
        raise DataError(f"{path}, row {number}: is not there any more; leave a set alone while it is read")
    return _row(path, columns, cells, number, line)


def _check_separator(path: Path, columns: Sequence[str]) -> None:
    """Raise DataError where the only column's name has what separates columns elsewhere: one column holds no pairs."""
    expected = _separator(path)
    if len(columns) == 1 and (other := next((mark for mark in _NAMES if mark != expected and mark in columns[0]), None)):
        cure = f"save it with {_NAMES[expected]}" + (f", or name it {path.stem}.tsv" if other == "\t" else "")
        raise DataError(f"{path}: expected {_NAMES[expected]} between columns; this file seems to use {other!r}: {cure}")


class _Lines:
    """The lines of a file from ``offset`` on, as a parser takes them; ``offset`` is that of what comes next, ``number`` counts
    the lines before it."""

    def __init__(self, path: Path, offset: int = 0, number: int = 0) -> None:
        self.path, self.offset, self.number = path, offset, number

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for chunk in file:
                for line in chunk.splitlines(keepends=True):  # also at the carriage returns of older files
                    text = line.decode("utf-8-sig" if self.offset == 0 else "utf-8")
                    self.offset, self.number = self.offset + len(line), self.number + 1
                    yield text


def _separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","


def _records(path: Path, lines: _Lines, *, strict: bool = True) -> Iterator[list[str]]:
    """Yield the cells of each record. Not ``strict``, a quote that nothing closes makes one cell of all that follows."""
    csv.field_size_limit(MAX_CELL)  # of the process
    records = csv.reader(iter(lines), delimiter=_separator(path), strict=strict)
    while True:
        begin = lines.number + 1
        try:
            cells = next(records, None)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not readable as CSV ({error}); save it as CSV in UTF-8") from error
        except csv.Error as error:
            raise DataError(
                f"{path}, line {begin:,}: the record that begins there cannot be read ({error}); expected a quote that opens a "
                "cell to be closed at the cell's end, and quotes within such a cell to be doubled"
            ) from error
        if cells is None:
            return
        yield cells


def _row(path: Path, columns: Sequence[str], cells: Sequence[str], number: int, line: int) -> dict[str, Any] | DataError:
    where = f"{path}, row {number} (line {line:,})"
    if len(cells) > len(columns):
        quoted = f"quote what holds {_NAMES[_separator(path)]}"
        return DataError(f"{where}: has {len(cells):,} fields, expected {len(columns):,}; {quoted}")
    if (damaged := next((n for n, cell in enumerate(cells) if "\0" in cell), None)) is not None:
        return DataError(f"{where}: {columns[damaged]!r} holds a NUL byte, which is no character of a text; clean it up")
    return dict(zip(columns, (*cells, *[None] * (len(columns) - len(cells))), strict=True))
