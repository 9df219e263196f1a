"""Quotes in CSV: what can be read in one way is, and a quote that nothing closes does not take the rows behind it with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.csv_rows import csv_row_at, csv_rows
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import DataError

HEAD = "question,response_a,response_b,winner,category\n"


def rows(number: int, odd: dict[int, str]) -> str:
    return HEAD + "".join(f"q{n}?,x{n},y{n},A,{odd.get(n, 'c')}\n" for n in range(number))


@pytest.mark.parametrize(
    ("odd", "line", "fault"),
    [
        ({3: '"odd'}, 5, "unexpected end of data"),
        ({3: '"odd', 50: '"a, b"'}, 5, "',' expected after '\"'"),  # the next quote closes it, and text follows
        ({3: '"odd"er', 50: '"a, b"'}, 5, "',' expected after '\"'"),
        ({2: '"two\nlines"', 9: '"odd'}, 12, "unexpected end of data"),
    ],
)
@pytest.mark.parametrize("read", [read_pairs, PairTable])
def test_a_cell_without_an_end(odd: dict[int, str], line: int, fault: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    """The record is named by the line it begins at."""
    (tmp_path / "c.csv").write_text(rows(1000, odd))
    with pytest.raises(DataError) as caught:
        read(tmp_path / "c.csv")
    assert f"c.csv, line {line:,}: the record that begins there cannot be read ({fault})" in str(caught.value)


def test_the_same_sentence_where_one_row_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(rows(9, {}))
    sixth = list(csv_rows(tmp_path / "c.csv"))[5]
    (tmp_path / "c.csv").write_text(rows(9, {5: '"c'}))
    with pytest.raises(DataError, match=r"c.csv, line 7: the record that begins there"):
        csv_row_at(tmp_path / "c.csv", sixth.offset, sixth.columns, 5, sixth.line)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [",", "\t"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_quotes_that_leave_nothing_open(end: str, mark: str, begin: bytes, tmp_path: Path) -> None:
    """Within a cell without quotes, doubled, around separators and line ends, around nothing, and at the end of the file."""
    cells = {
        'a 5" nail': 'a 5" nail',
        'say "yes" now': 'say "yes" now',
        '"say ""yes"" now"': 'say "yes" now',
        f'"a{mark}b"': f"a{mark}b",
        f'"a{end}b"': f"a{end}b",
        '""': "",
        '""""': '"',
        ' "x"': ' "x"',
        '"last"': "last",
    }
    path = tmp_path / ("c.csv" if mark == "," else "c.tsv")
    lines = [f"n{mark}cell{mark}more", *(f"{n}{mark}{cell}{mark}{cell}" for n, cell in enumerate(cells))]
    path.write_bytes(begin + end.join(lines).encode())
    table = list(csv_rows(path))
    assert [row.cells for row in table] == [{"n": str(n), "cell": t, "more": t} for n, t in enumerate(cells.values())]
    assert [csv_row_at(path, row.offset, row.columns, n, row.line) for n, row in enumerate(table)] == [r.cells for r in table]


def test_another_separator_with_quotes(tmp_path: Path) -> None:
    """As spreadsheets of many countries save it; the separator is what is wrong with it."""
    (tmp_path / "c.csv").write_text('"question";"chosen";"rejected"\n"q";"x";"y"\n')
    with pytest.raises(DataError, match="expected commas between columns; this file seems to use ';'"):
        read_pairs(tmp_path / "c.csv")
