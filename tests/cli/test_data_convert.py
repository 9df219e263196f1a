"""`rewardlab data convert`, `validate` and `balance`: names of files that nobody writes, sets without a pair, bad pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardlab.cli import main
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.types import PreferencePair
from tests.support.images import png
from tests.support.shell import run_main


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
