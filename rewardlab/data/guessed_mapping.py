"""Pairs of files in a common other form, read without a mapping where there is one way to read them: CSV, JSON, a dataset that
``datasets`` saved, and the columns ``chosen`` and ``rejected``, or two responses and a label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rewardlab.data.columns import PAIR_COLUMNS, nearest_column
from rewardlab.data.pairs import pair_files_of
from rewardlab.data.sources import saved_dataset_files, source_rows
from rewardlab.errors import DataError
from rewardlab.reporting.progress import log_line

ORDERED = ("response_images", "judgment", "order", "preferred")  # columns of a pair that say something of one response
OTHER_TABLES = (".csv", ".tsv", ".json", ".arrow")
MAPPING = "write a mapping for `rewardlab data build MAPPING.yaml` (docs/how-to/own_data.md)"

_BETTER = ("chosen", "better", "preferred_response", "chosen_response")
_WORSE = ("rejected", "worse", "rejected_response")
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
            label, ordered = str(row.get(self.label)).strip().lower(), texts
            if not any(label in names for names in self.names):
                first_names, second_names = (" or ".join(names) for names in self.names)
                return DataError(
                    f"{where}: {self.label!r} is {label!r:.40}; expected {first_names}, or {second_names}; {MAPPING}"
                )
            preferred = int(label in self.names[1])
        return {**pair, "question": row.get(self.question), "responses": ordered, "preferred": preferred} | (
            {"images": _list_of(row.get(self.images))} if self.images else {}
        )


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
    better, worse = ([by_name[name] for name in names if name in by_name] for names in (_BETTER, _WORSE))
    sides = [
        (by_name[f"{stem}{one}"], by_name[f"{stem}{two}"], (stem, one, two))
        for stem in _STEMS
        for one, two in _SIDES
        if f"{stem}{one}" in by_name and f"{stem}{two}" in by_name
    ]
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
    first, second, (stem, one, two) = sides[0]
    names = ((one, f"{stem}{one}", first.lower()), (two, f"{stem}{two}", second.lower()))
    unique = (tuple(dict.fromkeys(names[0])), tuple(dict.fromkeys(names[1])))
    return GuessedMapping(questions[0], (first, second), image, labels[0], unique)


def data_files_of(path: Path) -> list[Path]:
    """Return the files of a set in any form that is read. Raise DataError where one is not there, or is of another kind."""
    if path.is_dir() and (saved := saved_dataset_files(path)):
        return saved
    return [path] if path.suffix in OTHER_TABLES and path.is_file() else pair_files_of(path)


def raw_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a set as they are stored. Raise DataError at one that cannot be read."""
    for file in data_files_of(path):
        for row in source_rows(file):
            if isinstance(row, DataError):
                raise row
            yield row


def rows_in_pair_form(file: Path) -> Generator[Mapping[str, Any] | DataError, None, None]:
    """Yield a file's rows with the columns of a pair, as :func:`guess_mapping` finds them in its first row, which is logged; as
    they are where they have ``responses``, or no mapping is found."""
    iter_rows = iter(source_rows(file))
    first = next(iter_rows, None)
    if first is None:
        return
    mapping = None
    if isinstance(first, Mapping) and "responses" not in first:
        mapping = guess_mapping(list(map(str, first)), str(file))
        if mapping:
            log_line(f"{file}: read as {mapping}")
    for number, row in enumerate(chain([first], iter_rows)):
        yield mapping.row_of(row, f"{file}, row {number}") if mapping and isinstance(row, Mapping) else row
