"""Rows of the first sheet of an .xlsx file, such as VLMEvalKit writes, read with the standard library.

An .xlsx file is a ZIP of XML: cells hold numbers, texts, or places in a table of shared texts (ECMA-376, part 1, chapter 18).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from rewardlab.errors import DataError

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_SHEET, _SHARED = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
MOST_BYTES = 1 << 30  # of a part once unpacked
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")  # a character that XML cannot hold


def sheet_rows(path: Path, expected: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the first sheet by the names in its first row; an empty cell is "". Raise DataError for a file that is
    none, ``expected`` says what it should be.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            shared = _shared_texts(archive, path)
            names: dict[int, str] | None = None
            for _, element in ElementTree.iterparse(_part(archive, _SHEET, path)):
                if element.tag != f"{_MAIN}row":
                    continue
                cells = dict(_cells(element, shared))
                element.clear()  # memory holds one row
                if names is None:
                    names = cells
                elif any(cells.values()):
                    yield {name: cells.get(place, "") for place, name in names.items()}
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile, ElementTree.ParseError) as error:
        raise DataError(f"{path}: is no .xlsx file that can be read; expected {expected}, or saved as .csv") from error


def _part(archive: zipfile.ZipFile, name: str, path: Path) -> zipfile.ZipExtFile:
    if (size := archive.getinfo(name).file_size) > MOST_BYTES:
        raise DataError(f"{path}: holds {size >> 20:,} MiB of cells, more than {MOST_BYTES >> 20:,}; save it as .csv")
    return archive.open(name)  # type: ignore[return-value]


def _shared_texts(archive: zipfile.ZipFile, path: Path) -> list[str]:
    if _SHARED not in archive.namelist():
        return []
    items = ElementTree.parse(_part(archive, _SHARED, path)).getroot()
    return [_text(item) for item in items]


def _text(item: ElementTree.Element) -> str:
    """Return a text in one piece or in several of different fonts."""
    return _plain("".join(piece.text or "" for piece in item.iter(f"{_MAIN}t")))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _cells(row: ElementTree.Element, shared: list[str]) -> Iterator[tuple[int, str]]:
    place = -1
    for cell in row.iter(f"{_MAIN}c"):
        place = _column(cell.get("r", "")) if cell.get("r") else place + 1
        value, kind = cell.findtext(f"{_MAIN}v", ""), cell.get("t", "n")
        yield place, shared[int(value)] if kind == "s" else _text(cell) if kind == "inlineStr" else _plain(value)


def _column(reference: str) -> int:
    """Return the column of "B7" from 0: 1."""
    number = 0
    for letter in re.match(r"[A-Z]*", reference)[0]:  # type: ignore[index]
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
