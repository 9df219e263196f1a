"""`rewardlab data convert`, `validate` and `balance`: names of files that nobody writes, sets without a pair, bad pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import main
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs, with_unique_ids, write_jsonl, write_parquet
from rewardlab.distill.pipeline import survey
from rewardlab.errors import DataError, OutputError
from rewardlab.types import PreferencePair
from tests.support.images import png
from tests.support.shell import run_main
from tests.support.videos import film


def write(path: Path, number: int) -> Path:
    rows = [{"question": f"q{n}", "responses": ["a", "b"], "preferred": 0} for n in range(number)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["y.csv", "y.json", "y.JSONL"])
def test_a_name_of_no_form_that_is_written(name: str, tmp_path: Path) -> None:
    """It would become a folder of Parquet under that name."""
    done = run_main(main, "data", "convert", write(tmp_path / "p.jsonl", 1), "--out", tmp_path / name)
    assert (done.returncode, f"{Path(name).suffix} is not written; name a .jsonl or .parquet" in done.stderr) == (2, True)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["y.jsonl", "y.parquet", "sets-v1.2"])
def test_names_that_are_written(name: str, tmp_path: Path) -> None:
    done = run_main(main, "data", "convert", write(tmp_path / "p.jsonl", 2), "--out", tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert len(read_pairs(tmp_path / name)) == 2


@pytest.mark.parametrize(
    ("command", "name"), [("convert", "y.jsonl"), ("convert", "y.parquet"), ("convert", "y"), ("balance", "y")]
)
def test_nothing_to_write_is_a_finding(command: str, name: str, tmp_path: Path) -> None:
    done = run_main(main, "data", command, write(tmp_path / "p.jsonl", 0), "--out", tmp_path / name)
    assert (done.returncode, "p.jsonl: holds no pairs, so nothing is written" in done.stderr) == (1, True)
    assert not (tmp_path / name).exists()


def with_a_cut_picture(path: Path) -> Path:
    """Twelve pairs in a file that says of its pictures that they were checked; of row 11 the picture is cut off."""
    pictures = [png((60 + n, 40)) for n in range(12)]
    pictures[11] = pictures[11][:-30]
    write_parquet([PreferencePair(f"p{n}", f"q{n}", ("a", "b"), 0, images=(pictures[n],)) for n in range(12)], path)
    return path


def test_an_embedded_picture_is_decoded(tmp_path: Path) -> None:
    """The row is named, kept out of what is written, and not converted."""
    data = with_a_cut_picture(tmp_path / "bad.parquet")
    done = run_main(main, "data", "validate", data, "--out", tmp_path / "good")
    assert done.returncode == 1
    assert f"{data}, row 11, image 0: not a readable image" in done.stdout
    assert "11 good, 1 bad" in done.stdout
    assert [pair.pair_id for pair in read_pairs(tmp_path / "good")] == [f"p{n}" for n in range(11)]
    for name in ("y.jsonl", "y.parquet"):
        done = run_main(main, "data", "convert", data, "--out", tmp_path / name)
        assert (done.returncode, "row 11, image 0: not a readable image" in done.stderr) == (2, True)
        assert not (tmp_path / name).exists()
    assert run_main(main, "data", "validate", tmp_path / "good").returncode == 0


def test_a_video_is_decoded(tmp_path: Path) -> None:
    """A video that cannot be decoded is a bad row, in the question or in a response."""
    clip = film(tmp_path / "a.mp4", 4).read_bytes()
    (tmp_path / "notes.mp4").write_text("no video")
    (tmp_path / "cut.mp4").write_bytes(clip[:900])
    rows = [{"videos": ["a.mp4"]}, {"videos": ["notes.mp4"]}, {"response_videos": [["a.mp4"], ["cut.mp4"]]}]
    lines = [json.dumps({"question": f"q{n}", "responses": ["a", "b"], "preferred": 0} | row) for n, row in enumerate(rows)]
    data = tmp_path / "p.jsonl"
    data.write_text("\n".join(lines))
    done = run_main(main, "data", "validate", data)
    assert (done.returncode, "1 good, 2 bad" in done.stdout) == (1, True), done.stdout
    assert "row 1 (line 2): not a supported video format" in done.stdout
    assert "row 2 (line 3): not a readable video" in done.stdout
    done = run_main(main, "data", "convert", data, "--out", tmp_path / "y.parquet")
    assert (done.returncode, "row 1 (line 2): not a supported" in done.stderr) == (2, True)


@pytest.mark.parametrize("write_set", [write_parquet, write_jsonl])
def test_two_writers_of_one_file(write_set: Any, tmp_path: Path) -> None:
    """The second is kept out, and the file of the first is whole; a writer that failed keeps none out."""
    out, pair = tmp_path / f"y.{write_set.__name__[6:]}", PreferencePair("p", "q", ("a", "b"), 0)

    def pairs() -> Iterator[PreferencePair]:
        yield pair
        with pytest.raises(OutputError, match=f"^{re.escape(str(out))}: another process is writing in it"):
            write_set([pair], out)
        yield replace(pair, pair_id="p2")

    with pytest.raises(DataError, match="appears twice"):
        write_set(with_unique_ids([pair, pair], out), out)
    assert write_set(pairs(), out) == 2
    assert [pair.pair_id for pair in read_pairs(out)] == ["p", "p2"]
    assert not out.stat().st_mode & 0o111


def test_equal_ids_are_not_written(tmp_path: Path) -> None:
    """As `data validate` refuses them; a mapping of `data build` numbers them."""
    rows = [{"pair_id": "x", "question": f"q{n}", "responses": [f"good {n}", f"bad {n}"], "preferred": 0} for n in range(3)]
    data = tmp_path / "p.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command, name in (("convert", "y.jsonl"), ("convert", "y.parquet"), ("balance", "y"), ("split", "z")):
        done = run_main(main, "data", command, data, "--out", tmp_path / name)
        assert (done.returncode, "row 1: pair_id 'x' appears twice" in done.stderr) == (2, True), done.stderr
        assert not (tmp_path / name).is_file()
    mapping = tmp_path / "m.yaml"
    mapping.write_text("name: m\nid: pair_id\nquestion: question\nchosen: responses.0\nrejected: responses.1\n")
    done = run_main(main, "data", "build", mapping, "--from", data, "--against", "none", "--out", tmp_path / "set")
    assert done.returncode == 0, done.stderr
    assert sorted(pair.pair_id for pair in read_pairs(tmp_path / "set")) == ["x", "x#2", "x#3"]


def test_texts_that_are_meant_to_be_so(tmp_path: Path) -> None:
    """`nan` may be the answer to a question on numbers; a command without the check says so."""
    data = tmp_path / "p.jsonl"
    rows = [{"question": f"What is 0 / 0, {n}?", "responses": ["nan", f"{n}"], "preferred": 0} for n in range(9)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run_main(main, "data", "validate", data)
    assert (done.returncode, "--allow broken-texts" in done.stderr) == (2, True)
    done = run_main(main, "data", "validate", data, "--allow", "broken-texts")
    assert (done.returncode, "9 pairs have gone wrong" in done.stdout) == (0, True), done.stderr
    for command in (("convert", data, "--out", tmp_path / "y"), ("stats", data, "--out", tmp_path / "s")):
        done = run_main(main, "data", *command, "--allow", "broken-texts")
        assert (done.returncode, "broken-texts has no effect" in done.stderr) == (2, True)
    assert len(PairTable(data, allow_columns=["broken-texts"])) == 9
    labelled = read_pairs(data)
    assert survey(labelled, allow=["broken-texts"])[0] == 9
    for read in (lambda: PairTable(data), lambda: survey(labelled)):
        with pytest.raises(DataError, match="empty value written as text"):
            read()
