"""`rewardlab data convert` and `balance`: names of files that nobody writes, and sets without a pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardlab.cli import main
from rewardlab.data.pairs import read_pairs
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
