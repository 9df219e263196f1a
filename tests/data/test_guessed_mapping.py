"""The same pairs in CSV, JSON, saved datasets and other columns, read without a mapping where there is one way to read them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.data.guessed_mapping import guess_mapping
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair
from tests.support.images import png

CHOSEN = [
    {"id": f"k{n}", "prompt": f"What is {n}?", "image": f"i{n % 3}.png", "chosen": f"right {n}", "rejected": f"wrong {n}"}
    for n in range(60)
]
SIDES = [
    {
        "question": row["prompt"],
        "photo": row["image"],
        "response_a": row["chosen"] if n % 2 else row["rejected"],
        "response_b": row["rejected"] if n % 2 else row["chosen"],
        "winner": ("A" if n % 2 else "B"),
    }
    for n, row in enumerate(CHOSEN)
]


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    for n in range(3):
        (folder / f"i{n}.png").write_bytes(png((28 + n, 28)))
    path = folder / f"pairs.{form}"
    if form in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), delimiter="\t" if form == "tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    elif form == "json":
        path.write_text(json.dumps(rows))
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        from datasets import Dataset

        path = folder / "saved"
        Dataset.from_list(rows).save_to_disk(str(path))
    return path


def right(pair: PreferencePair) -> str:
    assert pair.preferred is not None
    return pair.responses[pair.preferred]


@pytest.mark.parametrize("rows", [CHOSEN, SIDES], ids=["chosen", "sides"])
@pytest.mark.parametrize("form", ["csv", "tsv", "json", "jsonl", "saved"])
def test_every_form_is_the_same_set(form: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Labels and images are those of the rows; where the better one is always first, a coin places it."""
    rows = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    pairs = read_pairs(write(tmp_path, form, rows), images=tmp_path)
    assert [right(pair) for pair in pairs] == [f"right {n}" for n in range(60)]
    assert [pair.question for pair in pairs] == [f"What is {n}?" for n in range(60)]
    assert len({pair.images for pair in pairs}) == 3
    assert 15 < sum(pair.preferred == 0 for pair in pairs) < 45


def test_the_mapping_is_said_and_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An id under another name is no pair_id: it is refused by the nearest one, or passed over on purpose."""
    data = write(tmp_path, "csv", CHOSEN)
    with pytest.raises(DataError, match="'id' is not read; did you mean 'pair_id'"):
        read_pairs(data)
    capsys.readouterr()
    assert len(read_pairs(data, allow_columns=["id"])) == 60
    shown = capsys.readouterr()
    sentence = "pairs.csv: read as question = prompt, chosen = chosen, rejected = rejected, images = image"
    assert (shown.out + shown.err).count(sentence) == 1
    command = ["bench", "run", "pairs", "--data", str(data), "--judge", "baseline:longest", "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, [*command, "--allow-columns", "id", "--cluster", "id"])
    assert done.exit_code == 0, done.output
    out = tmp_path / "c.parquet"
    done = CliRunner().invoke(app, ["data", "convert", str(data), "--allow-columns", "id", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert len(PairTable(out)) == 60
    with pytest.raises(DataError, match="`rewardlab data convert FILE"):
        PairTable(data)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["chosen", "rejected"], "question none"),
        (["prompt", "query", "chosen", "rejected"], "question prompt or query"),
        (["prompt", "chosen", "rejected", "photo", "screenshot"], "images photo or screenshot"),
        (["prompt", "chosen", "rejected", "answer_a", "answer_b", "winner"], "more than one"),
        (["prompt", "answer_a", "answer_b"], "0 of the columns"),
        (["prompt", "answer_a", "answer_b", "winner", "label"], "2 of the columns"),
    ],
)
def test_what_is_not_clear_is_not_guessed(columns: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"{message}.*data build MAPPING.yaml"):
        guess_mapping(columns, "p.csv")


def test_labels_by_name() -> None:
    """What names the first and the second goes by how the columns are called; another value is a bad row."""
    assert guess_mapping(["text", "score"], "p") is None
    for columns, values in (
        (("answer1", "answer2"), ("1", 2)),
        (("response_0", "response_1"), (0, "response_1")),
        (("A", "B"), ("a", " B ")),
    ):
        mapping = guess_mapping(["question", *columns, "preferred"], "p")
        assert mapping is not None
        for place, value in enumerate(values):
            row = mapping.row_of({"question": "q", columns[0]: "x", columns[1]: "y", "preferred": value}, "row 3")
            assert isinstance(row, dict)
            assert (row["responses"], row["preferred"]) == (["x", "y"], place)
        bad = mapping.row_of({"question": "q", columns[0]: "x", columns[1]: "y", "preferred": "tie"}, "row 3")
        assert isinstance(bad, DataError)
        assert "row 3: 'preferred' is 'tie'; expected" in str(bad)
