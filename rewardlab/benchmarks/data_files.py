"""Reading a benchmark's files: damaged ones end in one short sentence, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardlab.data.files import json_fault
from rewardlab.data.row_files import parse_line
from rewardlab.errors import DataError

_MOST = 200  # characters of a reason
_START = 4096  # bytes that are looked at


def check_text(path: Path, expected: str) -> None:
    """Raise DataError for a file that is not there, packed, or no text in UTF-8. ``expected`` says what it should be."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {expected}")
    with path.open("rb") as file:
        start = file.read(_START)
    if start.startswith(b"\x1f\x8b"):
        raise DataError(f"{path}: is compressed with gzip; unpack it first (gunzip), expected {expected}")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: is in UTF-16; save it as UTF-8, expected {expected}")
    if b"\0" in start:
        raise DataError(f"{path}: is not a text file; expected {expected}")


def json_rows(path: Path, expected: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the rows of :func:`rows_or_nulls`. Raise DataError for ``null``, too."""
    for fields, where in rows_or_nulls(path, expected):
        if fields is None:
            raise DataError(f"{where}: expected {expected}, not a JSON NoneType")
        yield fields, where


def rows_or_nulls(path: Path, expected: str) -> Iterator[tuple[Mapping[str, Any] | None, str]]:
    """Yield the objects of JSON lines, None for ``null``, each with the place to name in an error; a byte order mark and blank
    lines are none.

    Raise DataError for a file of another kind, for a line that is something else, and for a file without any.
    """
    check_text(path, expected)
    number = 0
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for line_number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, row {number} (line {line_number})"
            fields = parse_line(line, path, line_number)
            if isinstance(fields, DataError):
                raise fields
            if not isinstance(fields, Mapping | None):
                raise DataError(f"{where}: expected {expected}, not a JSON {type(fields).__name__}")
            yield fields, where
            number += 1
    if number == 0:
        raise DataError(f"{path}: holds no rows; expected {expected}")


def whole_json(path: Path, expected: str) -> Any:
    """Return what a JSON file holds. Raise DataError."""
    check_text(path, expected)
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start:,}); expected {expected}") from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({json_fault(error, text)}); expected {expected}") from error
    except RecursionError as error:
        raise DataError(f"{path}: JSON nested too deeply; expected {expected}") from error


def reason(error: BaseException, fields: Any = None) -> str:
    """Return why a row cannot be read, in few words: what it lacks and has, or what the error says."""
    if isinstance(error, KeyError) and error.args:
        present = ", ".join(map(str, fields)) if isinstance(fields, Mapping) else ""
        return f"lacks {str(error.args[0])!r}" + (f", has {present[:_MOST]}" if present else "")
    if isinstance(error, (AttributeError, TypeError)) and "'" in str(error):  # Python's own words, which name no column
        return "a value is of another kind"
    if isinstance(error, UnicodeError):
        return "a text is not in UTF-8"
    text = " ".join(str(error).split())
    return text[:_MOST] + ("…" if len(text) > _MOST else "")
