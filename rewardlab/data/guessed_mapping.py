"""Pairs of files in a common other form, read without a mapping where there is one way to read them: CSV, JSON, a dataset that
``datasets`` saved, and the columns ``chosen`` and ``rejected``, or two responses and a label.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.columns import PAIR_COLUMNS, nearest_column
from rewardlab.data.csv_rows import csv_rows
from rewardlab.data.files import place_in_file
from rewardlab.data.pairs import lines_of, pair_files_of
from rewardlab.data.sources import HUB, log_splits, saved_dataset_files, source_rows
from rewardlab.errors import DataError
from rewardlab.reporting.progress import log_line

ORDERED = ("response_images", "judgment", "order", "preferred")  # columns of a pair that say something of one response
OTHER_TABLES = (".csv", ".tsv", ".json", ".arrow")
NUMBERS = ("preferred", "level", "teacher_share")
LISTS = ("responses", "images", "videos", "response_images")
MAPPING = (
    "write a mapping for `rewardlab data build MAPPING.yaml`; `rewardlab data validate FILE --suggest` prints one "
    "(docs/how-to/own_data.md)"
)

BETTER = ("chosen", "better", "preferred_response", "chosen_response")
WORSE = ("rejected", "worse", "rejected_response")
_SIDES = (("a", "b"), ("1", "2"), ("0", "1"))
_STEMS = ("response_", "answer_", "output_", "completion_", "response", "answer", "")


@dataclass(frozen=True)
class GuessedMapping:
    """Which column is what; ``responses`` are the better and the worse one, or with ``label`` the two that its values name:
    ``names`` of the first and of the second."""

    question: str
    responses: tuple[str, str]
    images: str | None = None
    label: str | None = None
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def __str__(self) -> str:
        sides = ("chosen", "rejected") if self.label is None else ("first response", "second response")
        parts: dict[str, str | None] = {"question": self.question, sides[0]: self.responses[0], sides[1]: self.responses[1]}
        parts |= {"images": self.images, "preferred": self.label}
        return ", ".join(f"{what} = {column}" for what, column in parts.items() if column)

    def row_of(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any] | DataError:
        """Return the row with the columns of a pair, other columns as they are; or why its label cannot be read."""
        read = {self.question, *self.responses, self.images, self.label}
        pair = {name: value for name, value in row.items() if name not in read}
        texts = [row.get(name) for name in self.responses]
        ordered_by = [name for name in ORDERED if row.get(name) not in (None, "", [], [[], []])]
        if ordered_by and (self.label is None or (self.label != "preferred" and "preferred" in ordered_by)):
            return DataError(f"{where}: {ordered_by[0]!r} depends on which response is which, and that is guessed; {MAPPING}")
        if self.label is None:
            # Sources put the better one first throughout: which is response 0 is a coin that the texts decide.
            first = hashlib.sha256("\0".join(sorted(map(str, texts))).encode(errors="backslashreplace")).digest()[0] % 2
            ordered = sorted(texts, key=str, reverse=bool(first))
            preferred = ordered.index(texts[0])
        else:
            label, ordered = _label_of(row.get(self.label)), texts
            if label is None:
                preferred = None
            elif not any(label in names for names in self.names):
                first_names, second_names = (" or ".join(names) for names in self.names)
                return DataError(
                    f"{where}: {self.label!r} is {label!r:.40}; expected {first_names}, or {second_names}; {MAPPING}"
                )
            else:
                preferred = int(label in self.names[1])
        return {**pair, "question": row.get(self.question), "responses": ordered, "preferred": preferred} | (
            {"images": _list_of(row.get(self.images))} if self.images else {}
        )


def _label_of(value: Any) -> str | None:
    """Return a label in small letters, a whole float as its integer, None for an empty cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return re.sub(r"^(\d+)\.0+$", r"\1", str(value).strip().lower()) or None


def _list_of(value: Any) -> list[Any]:
    """Return the images of a cell: a list, one, several as JSON, or none."""
    if value is None or value == "":
        return []
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def guess_mapping(columns: Sequence[str], where: str) -> GuessedMapping | None:
    """Return the mapping of a file with these columns, None where it holds no two responses under known names. Raise DataError
    where more than one column could be the question or the image, or none the question."""

    def like(read: str) -> list[str]:
        return [read] if read in columns else [name for name in columns if nearest_column(name, PAIR_COLUMNS) == read]

    by_name = {name.lower(): name for name in columns}
    better, worse = ([by_name[name] for name in names if name in by_name] for names in (BETTER, WORSE))
    sides = sides_of(columns)
    if not (len(better) == len(worse) == 1) and not sides:
        return None
    questions, images = like("question"), like("images")
    if len(questions) != 1 or len(images) > 1 or (len(better) == len(worse) == 1) == bool(sides) or len(sides) > 1:
        raise DataError(
            f"{where}: the columns ({', '.join(columns)}) can be read in no way or in more than one: question "
            f"{' or '.join(questions) or 'none'}, images {' or '.join(images) or 'none'}; {MAPPING}"
        )
    image = images[0] if images else None
    if not sides:
        return GuessedMapping(questions[0], (better[0], worse[0]), image)
    labels = [name for name in like("preferred") if name not in sides[0]]
    if len(labels) != 1:
        raise DataError(f"{where}: {len(labels)} of the columns ({', '.join(columns)}) could be the label; {MAPPING}")
    first, second, names = sides[0]
    return GuessedMapping(questions[0], (first, second), image, labels[0], names)


def sides_of(columns: Iterable[str]) -> list[tuple[str, str, tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Return each two columns that are a first and a second response by their names, and what a label calls them: (response_a,
    response_b, (("a", "response_a"), ("b", "response_b")))."""
    by_name = {name.lower(): name for name in columns}
    return [
        (by_name[f"{stem}{one}"], by_name[f"{stem}{two}"], (_once(one, f"{stem}{one}"), _once(two, f"{stem}{two}")))
        for stem in _STEMS
        for one, two in _SIDES
        if f"{stem}{one}" in by_name and f"{stem}{two}" in by_name
    ]


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class FileRow:
    """A row of a file, or why it is none; ``line``: where it begins in a file of lines, from 1."""

    row: Mapping[str, Any] | DataError
    line: int | None = None


@dataclass(frozen=True)
class PairForm:
    """How the rows of one file get the columns of a pair: by a mapping that was guessed, and where the file has ``cells`` of
    text by reading the numbers and lists in them."""

    mapping: GuessedMapping | None = None
    cells: bool = False

    @staticmethod
    def of(file: Path, columns: Sequence[str]) -> PairForm:
        """Return the form of a file with these columns; a mapping is logged. Raise DataError as :func:`guess_mapping` does."""
        mapping = None if "responses" in columns else guess_mapping(list(map(str, columns)), str(file))
        if mapping:
            log_line(f"{file}: read as {mapping}")
        return PairForm(mapping, file.suffix in (".csv", ".tsv"))

    @property
    def media_columns(self) -> tuple[str, ...]:
        """Columns with media besides those of a pair."""
        return (self.mapping.images,) if self.mapping and self.mapping.images else ()

    def of_row(self, stored: FileRow, where: str) -> FileRow:
        """Return a row in pair form, or why it has none."""
        row = stored.row
        try:
            if self.mapping and isinstance(row, Mapping):
                row = self.mapping.row_of(row, where)
            if self.cells and isinstance(row, Mapping):
                row = pair_cells(row)
        except RecursionError:
            row = DataError(f"{where}: a list in a cell is nested too deeply to be read; expected a flat one")
        return stored if row is stored.row else FileRow(row, stored.line)


def pair_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a CSV with the numbers and the lists of a pair's columns read from their texts; what is none is left as
    it is, for the check of the row."""
    cells = {name: value for name, value in row.items() if name not in NUMBERS or value != ""}
    for name in NUMBERS:
        with suppress(TypeError, ValueError):
            cells[name] = float(cells.get(name) or "")
    for name in LISTS:
        if isinstance(value := cells.get(name), str):
            cells[name] = _list_of(value)
    return cells


def data_files_of(path: Path) -> list[Path]:
    """Return the files of a set in any form that is read; where they are of several splits, that is logged. Raise DataError
    where one is not there, or is of another kind."""
    if str(path).startswith(HUB):
        raise DataError(
            f"{path}: is on the Hub; `rewardlab data build RECIPE_OR_MAPPING --from {path} --out FOLDER` makes pairs of it"
        )
    if not path.is_dir():
        return [path] if path.suffix in OTHER_TABLES and path.is_file() else pair_files_of(path)
    files = saved_dataset_files(path) or pair_files_of(path)
    log_splits(path, tuple(files))
    if files[0].suffix in (".parquet", ".jsonl"):
        others = sorted(file.name for file in path.iterdir() if file.suffix in (*OTHER_TABLES, ".parquet", ".jsonl"))
        if unread := [name for name in others if path / name not in files]:
            log_line(f"{path}: {', '.join(unread[:5])} {'...' if len(unread) > 5 else ''} beside {files[0].name} are not read")
    return files


def stored_rows(file: Path) -> Generator[FileRow, None, None]:
    """Yield the rows of a file as they are stored."""
    if file.suffix == ".jsonl":
        for line, row in lines_of(file):
            yield FileRow(row, line)
    elif file.suffix in (".csv", ".tsv"):
        for record in csv_rows(file):
            yield FileRow(record.cells, record.line)
    else:
        for row in source_rows(file):
            yield FileRow(row)


def raw_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a set as they are stored. Raise DataError at one that cannot be read."""
    for file in data_files_of(path):
        for stored in stored_rows(file):
            if isinstance(stored.row, DataError):
                raise stored.row
            yield stored.row


def rows_in_pair_form(file: Path) -> Generator[FileRow, None, None]:
    """Yield a file's rows with the columns of a pair, as :class:`PairForm` finds them in its first row; as they are where they
    have ``responses``, or no mapping is found."""
    form: PairForm | None = None
    for number, stored in enumerate(stored_rows(file)):
        if form is None and isinstance(stored.row, Mapping):
            form = PairForm.of(file, list(map(str, stored.row)))
        yield (form or PairForm()).of_row(stored, f"{file}, row {number}{place_in_file(file, file, stored.line)}")
