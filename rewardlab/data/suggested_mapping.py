"""A mapping that may fit a file nobody has described: a text to check and to save, for `rewardlab data build`.

Names decide first, by :func:`rewardlab.data.columns.nearest_column` and :mod:`rewardlab.data.guessed_mapping`; where they say
nothing, what the first rows hold: media by their form, a label by its few values. What neither says is left open, with the
columns that it could be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rewardlab.data.columns import PAIR_COLUMNS, looks_like_media, nearest_column
from rewardlab.data.guessed_mapping import BETTER, WORSE, data_files_of, sides_of, stored_rows
from rewardlab.errors import DataError

NUM_ROWS = 200  # that are looked at
MOST_LABELS = 4  # different values of a column that may be a label
OPEN = "FILL_IN"


def suggested_mapping(path: Path) -> str:
    """Return the YAML of a mapping for the columns of a set, with comments where it is to be checked. Raise DataError where no
    row can be read, or the rows have a pair's columns already."""
    file = data_files_of(path)[0]
    rows = [stored.row for stored in islice(stored_rows(file), NUM_ROWS) if isinstance(stored.row, Mapping)]
    if not rows:
        raise DataError(f"{file}: has no row of columns to map; expected objects, or a first line with names")
    if {"question", "responses"} <= rows[0].keys():
        raise DataError(f"{file}: has the columns of a pair already; `rewardlab data validate {file}` says what is wrong")
    columns, name = _columns_of(rows), _name_of(path)
    lines = [
        f"# A mapping for {_remark(str(path))}, of its first {len(rows):,} rows. Check it, save it as {name}.yaml, then",
        f"# rewardlab data build {name}.yaml --from {_remark(str(path))} --no-decontaminate --out sets/{name}",
        f"name: {_quoted(name)}",
        *_fields(columns),
    ]
    return "\n".join(lines) + "\n"


_NO_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")  # as they are; JSON escapes other controls


def _quoted(value: str) -> str:
    """Return a text as YAML in double quotes, on one line: what it looks like, such as a number, counts for nothing there."""
    return _NO_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _quoted_list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"


def _remark(*texts: str) -> str:
    """Return texts for a comment, which ends with its line: those that would not stay on it in quotes."""
    return ", ".join(text if text.isprintable() else _quoted(text) for text in texts)


def _name_of(path: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_") or "mine"


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values by column; of nested values by their path, ``a.b.0``. Media are one value."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in _leaves(row, ()):
            columns.setdefault(name, []).append(value)
    return columns


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    is_nested = isinstance(value, Mapping | list | tuple) and value and not looks_like_media(value)
    if is_nested and len(path) < 4:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value[:4]):
            yield from _leaves(item, (*path, str(key)))
    else:
        yield ".".join(path), value


def _fields(columns: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    by_name = {name.lower(): name for name in columns}
    media = [name for name, values in columns.items() if any(map(looks_like_media, values))]
    texts = [name for name in columns if name not in media and any(isinstance(value, str) for value in columns[name])]
    yield from _optional("id", [name for name in texts if nearest_column(name, PAIR_COLUMNS) == "pair_id"])
    questions = [name for name in texts if nearest_column(name, PAIR_COLUMNS) == "question"]
    yield _required("question", questions, texts)
    if media:
        yield f"images: {_quoted_list(media)}"
    better, worse = ([by_name[name] for name in names if name in by_name] for names in (BETTER, WORSE))
    answers = [name for name in texts if name not in questions]
    sides = sides_of(columns)
    labels = [name for name in columns if name not in media and _is_label(name, columns[name])]
    if sides and not (better and worse):
        first, second, names = sides[0]
        yield f"responses: {_quoted_list([first, second])}"
        named = [name for name in labels if name not in (first, second)]
        yield _required("preferred", [name for name in named if nearest_column(name, PAIR_COLUMNS) == "preferred"], named)
        label = next(iter(named), None)
        values = list(dict.fromkeys(str(value).strip() for value in columns.get(label or "", ())))
        yield from _label_values(values, names)
    else:
        yield _required("chosen", better, answers)
        yield _required("rejected", worse, answers)
        if not (better and worse):
            yield "# or, where another column says which is better: responses: [FIRST, SECOND], preferred, first and second"
    yield from _optional("category", [name for name in texts if name.lower() in ("category", "task", "subset", "type")])


def _is_label(name: str, values: Sequence[Any]) -> bool:
    different = {str(value).strip() for value in values}
    return nearest_column(name, PAIR_COLUMNS) == "preferred" or (
        len(values) > MOST_LABELS and 2 <= len(different) <= MOST_LABELS
    )


def _label_values(values: Sequence[str], names: tuple[Sequence[str], Sequence[str]]) -> Iterator[str]:
    for key, expected in zip(("first", "second"), names, strict=True):
        matches = [value for value in values if value.lower() in expected]
        yield _required(key, matches, values, "value")
    if rest := [value for value in values if not any(value.lower() in expected for expected in names)]:
        yield f"ties: {_quoted_list(rest)}  # are these ties? Rows with them are left out"


def _required(key: str, matches: Sequence[str], others: Sequence[str], what: str = "column") -> str:
    if len(matches) == 1:
        return f"{key}: {_quoted(matches[0])}"
    if matches:
        return f"{key}: {_quoted(matches[0])}  # check: {_remark(*matches)} could all be it"
    return f"{key}: {OPEN}  # no {what} by a known name; there are: {_remark(*others[:12]) or 'none'}"


def _optional(key: str, matches: Sequence[str]) -> Iterator[str]:
    if matches:
        yield _required(key, matches, ())
