"""Raw rows of files: Parquet, JSON lines, a JSON list, CSV, TSV, and Arrow as ``datasets`` saves it.

A set is one file or a folder of them, read in the order of their names. All readers stream, except that of a JSON list.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rewardlab.data.files import UNFINISHED, json_fault, place_in_file
from rewardlab.data.parquet import rows_of_parquet, unreadable_parquet
from rewardlab.errors import DataError
from rewardlab.reporting.progress import log_line

MARK = b"rewardlab_pairs"  # in a Parquet file's metadata: the version of the format; its images were checked
HUB = "hf:"  # before OWNER/NAME of a dataset of the Hub
OTHER_TABLES = (".csv", ".tsv", ".json", ".arrow")
KINDS = ".parquet, .jsonl, .csv, .tsv, .json with one list, or a dataset that `datasets` saved"
ARROW_ROWS = 64  # rows of a record batch that are converted to Python at a time
MAX_CELL = 1 << 30  # characters of a CSV cell; the library's default is less than a long answer
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


@dataclass(frozen=True)
class FileRow:
    """A row of a file, or why it cannot be read; ``line``: the line of a text file that it begins at, from 1."""

    row: Mapping[str, Any] | DataError
    line: int | None = None


def files_of(path: Path) -> list[Path]:
    """Return the data files of a set: itself, or a folder's Parquet files by name, or else its JSON lines. Raises DataError."""
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob("*.parquet")) or sorted(path.rglob("*.jsonl"))
    if marked := sorted(folder for folder in {path, *(file.parent for file in files)} if (folder / UNFINISHED).exists()):
        raise DataError(
            f"{marked[0]}: is incomplete, because the command that writes it was interrupted; run that command again"
        )
    if not files:
        saved = "; `rewardlab data build MAPPING.yaml` makes pairs of its .arrow files" if any(path.rglob("*.arrow")) else ""
        tables = [f"; name {file}" for file in sorted(path.iterdir()) if file.suffix in (".csv", ".tsv", ".json")]
        raise DataError(f"{path}: a folder without .parquet or .jsonl files{saved or ''.join(tables[:1])}")
    return files


def data_files_of(path: Path) -> list[Path]:
    """Return the files of a set in any form that can be read; the log names several splits, and files that are not read. Raise
    DataError if one is missing, or is of another kind."""
    if str(path).startswith(HUB):
        raise DataError(
            f"{path}: is on the Hub; `rewardlab data build RECIPE_OR_MAPPING --from {path} --out FOLDER` makes pairs of it"
        )
    files = (saved_dataset_files(path) or files_of(path)) if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file; expected rows as {KINDS}")
        if file.suffix not in (".parquet", ".jsonl", *OTHER_TABLES):
            raise DataError(f"{file}: expected rows as {KINDS}")
    if path.is_dir():
        log_splits(path, tuple(files))
        others = sorted(file.name for file in path.iterdir() if file.suffix in (*OTHER_TABLES, ".parquet", ".jsonl"))
        unread = [name for name in others if path / name not in files]
        if unread and files[0].suffix in (".parquet", ".jsonl"):
            log_line(f"{path}: {', '.join(unread[:5])} {'...' if len(unread) > 5 else ''} beside {files[0].name} are not read")
    return files


def saved_dataset_files(folder: Path) -> list[Path]:
    """Return the Arrow files that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote, in their order; [] for any
    other folder. Raises DataError if one is missing."""
    if (listing := folder / "dataset_dict.json").is_file():
        splits = _read_listing(listing).get("splits", [])
        return [file for split in splits for file in saved_dataset_files(folder / str(split))]
    if not (state := folder / "state.json").is_file():
        return []
    files = [folder / str(entry["filename"]) for entry in _read_listing(state).get("_data_files", [])]
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{folder}: a saved dataset that lacks {', '.join(missing)}; save it again")
    return files


def _read_listing(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not the listing of a saved dataset ({error})") from error


_SPLIT = re.compile(r"(train|training|test|testing|validation|valid|val|dev|eval)(?:[-_.0-9]|$)", re.IGNORECASE)


@cache
def log_splits(folder: Path, files: tuple[Path, ...]) -> None:
    """Log, once, that a folder's files belong to several splits, by their names, and how to name one split."""
    splits: dict[str, list[Path]] = {}
    saved = (folder / "dataset_dict.json").is_file()
    for file in files:
        parts = file.relative_to(folder).parts if file.is_relative_to(folder) else ()
        names = parts[:1] if saved else [match[1] for part in parts if (match := _SPLIT.match(part))]
        if names:
            splits.setdefault(names[0], []).append(file)
    if len(splits) < 2:
        return
    first, counts = next(iter(splits.values()))[0], [f"{name} ({len(of_split):,})" for name, of_split in splits.items()]
    example = first.parent if first.parent != folder else first
    log_line(f"{folder}: all splits are read, {', '.join(counts)}, of {len(files):,} files; name {example} for one alone")


def rows_of(path: Path) -> Generator[Mapping[str, Any], None, None]:
    """Yield the raw rows of a set, one at a time. Raise DataError at one that cannot be read."""
    for file in data_files_of(path):
        for stored in stored_rows(file):
            if isinstance(stored.row, DataError):
                raise stored.row
            yield stored.row


def stored_rows(file: Path) -> Generator[FileRow, None, None]:
    """Yield the rows of a file by its suffix, JSON lines if that is none of :data:`KINDS`. Raises DataError."""
    if read := {".parquet": rows_of_parquet, ".arrow": _rows_of_arrow, ".json": _rows_of_json}.get(file.suffix):
        yield from map(FileRow, read(file))
    elif file.suffix in (".csv", ".tsv"):
        yield from _rows_of_csv(file)
    else:
        yield from (FileRow(row, line) for line, row in lines_of(file))


def lines_of(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | DataError]]:
    """Yield (line number from 1, object or why there is none) of JSON lines. Raises DataError if there is no file."""
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; expected a file of JSON lines")
    # Bytes that are not UTF-8 become lone surrogates, which parse_line refuses: the row is bad, not the file.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, parse_line(line, path, number)


def parse_line(line: str, path: Path, number: int) -> Mapping[str, Any] | DataError:
    """Return the object of a line, or why it has none."""
    try:
        line.encode()
        row: Mapping[str, Any] = json.loads(line)
    except UnicodeEncodeError:
        return DataError(f"{path}, line {number}: not UTF-8; save the file in that encoding")
    except ValueError as error:
        return DataError(f"{path}, line {number}: not JSON ({json_fault(error)}); expected one object a line")
    except RecursionError:
        return DataError(f"{path}, line {number}: not JSON that can be read (nested too deeply)")
    return row


def _rows_of_json(path: Path) -> Iterator[Mapping[str, Any]]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        fault = json_fault(error, text) if isinstance(error, ValueError) else error
        raise DataError(f"{path}: not readable as JSON ({fault})") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected one JSON list of rows, got {type(rows).__name__}")
    yield from rows


def _rows_of_arrow(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an Arrow stream, as ``datasets`` writes it, or of an Arrow file; one record batch is in memory."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file:
            if file.read(6) == b"ARROW1":
                reader = pa.ipc.open_file(file)
                batches: Iterable[Any] = map(reader.get_batch, range(reader.num_record_batches))
            else:
                file.seek(0)
                batches = pa.ipc.open_stream(file)
            for batch in batches:
                for start in range(0, batch.num_rows, ARROW_ROWS):
                    yield from batch.slice(start, ARROW_ROWS).to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable Arrow file ({error})") from error


def _csv_columns(path: Path) -> list[str]:
    """Return the names in the first line of a CSV or TSV file, [] if it is empty. Raise DataError for another separator, or a
    name that occurs twice."""
    csv.field_size_limit(MAX_CELL)  # of the process
    separator = _separator(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns: list[str] = next(filter(None, csv.reader(file, delimiter=separator)), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not readable as CSV ({error}); save it as CSV in UTF-8") from error
    if len(columns) == 1 and (other := next((s for s in _SEPARATORS if s != separator and s in columns[0]), None)):
        cure = f"save it with {_SEPARATORS[separator]}" + (f", or name it {path.stem}.tsv" if other == "\t" else "")
        raise DataError(f"{path}: expected {_SEPARATORS[separator]} between columns; this file seems to use {other!r}: {cure}")
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise DataError(f"{path}: the column {twice[0]!r} appears twice; rename one")
    return columns


def _rows_of_csv(path: Path) -> Iterator[FileRow]:
    """Yield the rows of a CSV or TSV file; cells that a short line lacks are None. Raise DataError as :func:`_csv_columns`
    does, and for a quote that is not closed, with the line at which its record begins."""
    columns, number, begin = _csv_columns(path), 0, 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            records = csv.reader(file, delimiter=_separator(path), strict=True)
            next(filter(None, records), None)
            begin = records.line_num + 1
            for cells in records:
                if cells:
                    yield FileRow(_csv_row(path, columns, cells, number, begin), begin)
                    number += 1
                begin = records.line_num + 1
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as CSV ({error}); save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise DataError(
            f"{path}, line {begin:,}: the record that begins there cannot be read ({error}); expected a quote that opens a "
            "cell to be closed at the cell's end, and quotes within such a cell to be doubled"
        ) from error


def _separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","


def _csv_row(path: Path, columns: Sequence[str], cells: Sequence[str], number: int, line: int) -> dict[str, Any] | DataError:
    where = f"{path}, row {number}{place_in_file(path, path, line)}"
    if len(cells) > len(columns):
        quoted = f"quote cells that hold {_SEPARATORS[_separator(path)]}"
        return DataError(f"{where}: has {len(cells):,} fields, expected {len(columns):,}; {quoted}")
    if (damaged := next((n for n, cell in enumerate(cells) if "\0" in cell), None)) is not None:
        return DataError(f"{where}: {columns[damaged]!r} contains a NUL byte; remove it")
    return dict(zip(columns, (*cells, *[None] * (len(columns) - len(cells))), strict=True))


def is_checked(path: Path) -> bool:
    """Return whether a file's embedded images were checked when it was written."""
    if path.suffix != ".parquet":
        return False
    import pyarrow.parquet as pq  # only Parquet needs it

    try:
        return MARK in (pq.read_schema(path).metadata or {})
    except (OSError, ValueError) as error:
        raise unreadable_parquet(path, error) from error
