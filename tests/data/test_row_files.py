"""Rows of files of any kind, as they are stored: quotes and separators of CSV, damaged rows, Arrow, large Parquet rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import BadRow, read_pairs, validate_rows
from rewardlab.data.row_files import stored_rows
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

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
    assert [row.row for row in stored_rows(path)] == [{"n": str(n), "cell": t, "more": t} for n, t in enumerate(cells.values())]


def test_another_separator_with_quotes(tmp_path: Path) -> None:
    """As spreadsheets of many countries save it; the separator is what is wrong with it."""
    (tmp_path / "c.csv").write_text('"question";"chosen";"rejected"\n"q";"x";"y"\n')
    with pytest.raises(DataError, match="expected commas between columns; this file seems to use ';'"):
        read_pairs(tmp_path / "c.csv")


def test_a_column_twice(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("question,chosen,rejected,chosen\nq,x,y,z\n")
    with pytest.raises(DataError, match="the column 'chosen' appears twice"):
        read_pairs(tmp_path / "c.csv")


def test_rows_of_a_csv_that_are_damaged(tmp_path: Path) -> None:
    """A NUL byte, as half-read files have it, and a field too many: the row, its line, the cure; read one by one as well."""
    path = tmp_path / "c.csv"
    for row, told in (
        ("q1,x\0,y,b,,,,", r"row 1 \(line 4\): 'response_a' contains a NUL byte; remove it"),
        ("q1,x,y,b,,,,,more", r"row 1 \(line 4\): has 9 fields, expected 8; quote cells that hold commas"),
    ):
        path.write_text(
            "question,response_a,response_b,winner,level,teacher_share,order,attempts\n\nq0,x,y,a,,,,\n" + row + "\n"
        )
        for read in (read_pairs, PairTable):
            with pytest.raises(DataError, match=told):
                read(path)


@pytest.mark.parametrize(
    ("name", "mark", "told"),
    [
        ("c.csv", ";", "expected commas between columns; this file seems to use ';': save it with commas$"),
        ("c.csv", "\t", r"expected commas between columns; this file seems to use '\\t': .*, or name it c.tsv$"),
        ("c.tsv", ",", "expected tabs between columns; this file seems to use ','"),
    ],
)
def test_another_separator(name: str, mark: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("question,chosen,rejected\nq,x,y\n".replace(",", mark))
    for read in (read_pairs, PairTable):
        with pytest.raises(DataError, match=told):
            read(tmp_path / name)


def test_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    """File, line and cure, in no words about Python's settings, of JSON lines and of one list."""
    good = json.dumps({"question": "q", "responses": ["x", "y"], "preferred": 0})
    bad = good.replace('"preferred": 0', '"level": ' + "9" * 5000)
    (tmp_path / "a.jsonl").write_text(f"{good}\n{bad}\n")
    (tmp_path / "a.json").write_text(f"[{good},\n{bad}]")
    for name, told in (("a.jsonl", r"a\.jsonl, line 2: not JSON \("), ("a.json", r"a\.json: not readable as JSON \(line 2: ")):
        with pytest.raises(DataError, match=told + "a number of more than 4,300 digits; shorten it, or put it") as caught:
            read_pairs(tmp_path / name)
        assert "sys." not in str(caught.value)


def test_odd_lines_and_cells(tmp_path: Path) -> None:
    """A byte order mark costs no row; what is nested without end is a bad row; a CSV row too long is one, a long cell none."""
    good = {"question": "Which?", "responses": ["a", "b"], "preferred": 0}
    lines = ["\ufeff" + json.dumps(good), "[" * 200_000, json.dumps({**good, "pair_id": "last"})]
    (tmp_path / "p.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    first, deep, last = validate_rows(tmp_path / "p.jsonl")
    assert isinstance(first, PreferencePair)
    assert isinstance(deep, BadRow)
    assert "nested too deeply" in deep.reason
    assert isinstance(last, PreferencePair)
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(DataError, match="not readable as JSON"):
        list(stored_rows(tmp_path / "deep.json"))
    (tmp_path / "c.csv").write_text(f"prompt,good,bad\nWhat?,{'x' * 200_000},no\nWhat?,yes,no,more\n")
    long, wide = (stored.row for stored in stored_rows(tmp_path / "c.csv"))
    assert not isinstance(long, DataError)
    assert len(long["good"]) == 200_000
    assert "row 1 (line 3): has 4 fields, expected 3; quote cells that hold commas" in str(wide)
