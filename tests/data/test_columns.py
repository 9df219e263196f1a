"""Columns of another name are errors, by the nearest one that is read; media are never left out by a wildcard."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import SFTConfig
from rewardlab.data.candidates import read_candidates
from rewardlab.data.columns import CANDIDATE_COLUMNS, PAIR_COLUMNS, AllowedColumns, nearest_column
from rewardlab.data.inputs import pair_of
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs
from rewardlab.data.rows import features
from rewardlab.data.set_checks import SetCheck, mentions_media
from rewardlab.data.urls import AllowedUrls
from rewardlab.distill.pipeline import survey
from rewardlab.errors import DataError
from rewardlab.training.run.held_out import pairs_beside
from rewardlab.types import PreferencePair
from tests.support.images import png

SYNONYMS = ["Image", "photos", "screenshot", "imgs", "picture_url", "image_path", "imges", "Images"]


def row(**changes: Any) -> dict[str, Any]:
    return {"question": "What is it?", "responses": ["a", "b"], "preferred": 0} | changes


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_the_known_columns_are_those_of_the_format() -> None:
    assert set(features()) == PAIR_COLUMNS


@pytest.mark.parametrize("name", SYNONYMS)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_media_under_another_name(name: str, form: str, tmp_path: Path) -> None:
    """By a path and embedded; read at once, one at a time, and by what training reads."""
    if form == "jsonl":
        data = write(tmp_path / "p.jsonl", [row(), row(**{name: "x.png"})])
    else:
        data = tmp_path / "p.parquet"
        pq.write_table(pa.Table.from_pylist([row(**{name: None}), row(**{name: {"bytes": png(), "path": None}})]), data)
    for read in (read_pairs, PairTable, lambda path: read_pairs(path, allow_columns=["all"])):
        with pytest.raises(DataError, match=f"row 1.*: the column '{name}' is not read"):
            read(data)
    with pytest.raises(DataError, match=f"did you mean 'images', a list[?].*--allow {name}$"):
        read_pairs(data)
    assert len(PairTable(data, allow_columns=[name])) == len(read_pairs(data, allow_columns=[name])) == 2


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("prefered", "preferred"),
        ("label", "preferred"),
        ("Question", "question"),
        ("response", "responses"),
        ("annotator", None),
    ],
)
def test_the_nearest_column(name: str, nearest: str | None) -> None:
    assert nearest_column(name, PAIR_COLUMNS) == nearest


@pytest.mark.parametrize(
    ("value", "nearest"),
    [
        ("scans/1.png", "images"),
        (["scans/1.png"], "images"),
        ("data:image/png;base64,xx", "images"),
        ({"bytes": b"x", "path": None}, "images"),
        ("CLIPS/1.MP4", "videos"),
        (["see it", "1.webm"], "videos"),
        ({"bytes": None, "path": "1.mov"}, "videos"),
    ],
)
def test_media_under_a_name_like_none(value: Any, nearest: str) -> None:
    """What a column holds says what it is for: whoever only passes over it would have pairs judged without their pictures."""
    with pytest.raises(DataError, match=f"'scan' is not read; did you mean '{nearest}', a list[?]"):
        AllowedColumns().check(row(scan=value), "row 0")


def test_columns_allowed_on_purpose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, or all that hold no media; each is said once. Nulls and the index of a data frame are no columns."""
    rows = [row(annotator="me", notes="n", __index_level_0__=3, photo=None) for _ in range(3)]
    data = write(tmp_path / "p.jsonl", rows)
    with pytest.raises(DataError, match=r"2 columns are not read: 'annotator', 'notes'[.] Rename or drop them"):
        read_pairs(data)
    with pytest.raises(DataError, match=r"'notes' is not read[.] Rename or drop it"):
        read_pairs(data, allow_columns=["annotator"])
    for allowed in (["annotator", " notes"], ["all"]):
        capsys.readouterr()
        assert len(read_pairs(data, allow_columns=allowed)) == 3
        shown = capsys.readouterr()
        assert [(shown.out + shown.err).count(f"the column '{name}' is not read") for name in ("annotator", "notes")] == [1, 1]


def test_rows_of_a_program() -> None:
    with pytest.raises(DataError, match="pair 2: the column 'photo' is not read; did you mean 'images'"):
        pair_of(row(photo=io.BytesIO()), 2, AllowedUrls())


def test_candidates(tmp_path: Path) -> None:
    """`rank` reads other columns, and those of RewardBench 2 are no strangers."""
    of_hub = {"id": "1", "prompt": "q", "chosen": ["a"], "rejected": ["b"], "num_correct": 1, "models": ["m"], "subset": "Math"}
    assert len(read_candidates(write(tmp_path / "r.jsonl", [of_hub]))) == 1
    data = write(tmp_path / "c.jsonl", [{"question": "q", "responses": ["a", "b"], "image": "x.png"}])
    with pytest.raises(DataError, match="row 0: the column 'image' is not read; did you mean 'images'"):
        read_candidates(data)
    assert len(read_candidates(data, allow_columns=["image"])) == 1
    assert nearest_column("answers", CANDIDATE_COLUMNS) == "responses"


def test_commands(tmp_path: Path) -> None:
    """Every command that reads pairs refuses, and has the flag that its message names."""
    data = write(tmp_path / "p.jsonl", [row(photo="x.png")])
    for command in (
        ["data", "validate", str(data)],
        ["bench", "run", "pairs", "--data", str(data), "--judge", "baseline:longest", "--out", str(tmp_path / "r")],
        ["distill", "--data", str(data), "--out", str(tmp_path / "d"), "base_url=http://127.0.0.1:9/v1", "model=m"],
        ["data", "convert", str(data), "--out", str(tmp_path / "c.parquet")],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code in (1, 2), done.output
        assert "'photo' is not read; did you mean 'images'" in f"{done.output}{done.exception}"
    done = CliRunner().invoke(app, ["data", "validate", str(data), "--allow", "photo"])
    assert done.exit_code == 0
    assert "1 good, 0 bad, 0 with images" in done.output


def test_bad_rows_of_one_kind_are_counted(tmp_path: Path) -> None:
    """Five of a kind are listed, then their number; a rare kind is not lost among them."""
    names = [{"images": [f"{number:03}.png"]} for number in range(60)]
    rows = [row(pair_id=f"p{number}", **({"preferred": 7} if number == 30 else names[number])) for number in range(60)]
    done = CliRunner().invoke(app, ["data", "validate", str(write(tmp_path / "p.jsonl", rows))])
    lines = done.output.splitlines()
    assert done.exit_code == 1
    assert [line for line in lines if "row 30" in line and "preferred" in line]
    missing = [line for line in lines if "cannot be read" in line]
    assert len(missing) == 6
    assert [f"row {number} (line {number + 1}), image 0, " in line for number, line in enumerate(missing[:5])] == [True] * 5
    assert missing[5] == f"and 54 more like: {missing[0]}"
    assert lines[-1].startswith("0 good, 60 bad")


@pytest.mark.parametrize(
    ("question", "mentions"),
    [
        ("<image>\nWhat is it?", True),
        ("What is shown in the image?", True),
        ("Describe this picture.", True),
        ("How high is the bar in the chart?", True),
        ("What colour has the car in the second photo?", True),
        ("WHICH ANIMAL DOES THIS IMAGE SHOW?", True),
        ("Summarise the attached screenshots", True),
        ("What is about these old photographs?", True),
        ("Name the bird pictured below.", True),
        ("Who is depicted here", True),
        ("Plugin the image loader.", False),
        ("Bathe picture, then frame.", False),
        ("Why is the imaged area small?", False),
        ("Who pictured inside of it wins?", False),
        ("What is the capital of France?", False),
        ("Write a poem about imagination.", False),
        ("How do I resize images in Python?", False),
        ("Explain image classification.", False),
    ],
)
def test_mentions(question: str, mentions: bool) -> None:
    assert mentions_media(question) is mentions


def test_counts_of_media() -> None:
    """Half with images is said; questions about images that nobody has are refused, a few in passing are not."""
    seen = PreferencePair("a", "What is in the image?", ("x", "y"), 0, images=(b"i",))
    blind, text = (PreferencePair("b", question, ("x", "y"), 0) for question in ("What is in the image?", "2 + 2?"))

    def count(*pairs: PreferencePair) -> SetCheck:
        counted = SetCheck()
        assert list(counted.of(pairs)) == list(pairs)
        return counted

    assert count(text, text).notes() == count(seen).notes() == []
    assert count(seen, text).notes() == ["1 of 2 pairs have no image"]
    assert count(seen, text, blind).notes()[1].startswith("1 questions without an image speak of one, row 2 first")
    count(seen, blind).refuse_blind_set("p")
    count(*[text] * 20, blind).refuse_blind_set("p")
    with pytest.raises(DataError, match=r"p: 1 of 2 questions mention an image \(row 1 first\)"):
        count(text, blind).refuse_blind_set("p")
    with pytest.raises(DataError, match="p, row 1: the question mentions an image but the pair has none"):
        count(seen, blind).refuse_missing("p")
    with pytest.raises(DataError, match="p, row 1: the question mentions an image"):
        count(text, blind).refuse_missing("p")
    count(*[text] * 20, blind).refuse_missing("p")


def test_training_and_distillation_count_media(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blind = write(tmp_path / "p.jsonl", [row(question="What is in the image?")] * 2)
    with pytest.raises(DataError, match="2 of 2 questions mention an image"):
        PairTable(blind)
    with pytest.raises(DataError, match=r"2 of 2 questions mention an image.* --allow no-images"):
        survey(read_pairs(blind))
    table = PairTable(blind, allow_without_images=True)
    assert len(table) == survey(read_pairs(blind), allow=["no-images"])[0] == 2
    assert len(pairs_beside(table, str(blind), SFTConfig())) == 2
    (tmp_path / "x.png").write_bytes(png())
    mixed = write(tmp_path / "m.jsonl", [row(images=["x.png"]), row()])
    PairTable(mixed)
    survey(read_pairs(mixed))
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("1 of 2 pairs have no image") == 2
    done = CliRunner().invoke(app, ["data", "validate", str(mixed)])
    assert done.output.splitlines()[-2:] == ["2 good, 0 bad, 1 with images", "1 of 2 pairs have no image"]


@pytest.mark.parametrize("command", ["sft", "rl", "rm", "prm", "policy", "score", "distill", "self-distil", "steps", "doctor"])
def test_every_command_that_refuses_a_blind_set_takes_one_on_purpose(command: str) -> None:
    assert "no-images" in CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output


def test_a_blind_set_is_read_on_purpose(tmp_path: Path) -> None:
    """By the doctor, as by the commands that train."""
    blind = write(tmp_path / "p.jsonl", [row(question="What is in the image?")] * 300)
    config = tmp_path / "sft.yaml"
    config.write_text("template: verdict\n")
    command = ["doctor", str(config), "--stage", "sft", "--data", str(blind), "--dry-run"]
    refused, read = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--allow", "no-images"]))
    assert "300 of 300 questions mention an image" in refused.output
    assert "300 pairs" in read.output
    assert "mention an image (row" not in read.output


def test_rows_without_a_label_are_counted(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["data", "validate", str(write(tmp_path / "p.jsonl", [row(), row(preferred=None)]))])
    assert "2 good (1 without a label: not for a benchmark without --labels, nor to train on), 0 bad" in done.output


def test_columns_are_listed_once_beside_the_real_errors(tmp_path: Path) -> None:
    """Sixty rows with two columns that are not read, of which five have another fault: the faults, then one line for both
    columns. Nothing is kept, and with the columns passed over 55 rows are good."""
    rows = [row(pair_id=f"p{n}", annotators=3, room="B") for n in range(60)]
    rows[1]["photo"] = "x.png"
    rows[7] |= {"images": ["none.png"]}
    rows[8] |= {"responses": ["a", ""], "preferred": 2}
    rows[9]["responses"] = ["a", "a"]
    rows[10]["preferred"] = 2
    rows[11]["pair_id"] = "p0"
    data = write(tmp_path / "p.jsonl", rows)
    done = CliRunner().invoke(app, ["data", "validate", str(data), "--out", str(tmp_path / "good")])
    assert done.exit_code == 1
    listed, last = done.output.splitlines()[:-1], done.output.splitlines()[-1]
    assert [f"row {n}" in line for n, line in zip(range(7, 12), listed, strict=False)] == [True] * 5
    assert len(listed) == 6
    assert "3 columns are not read: 'annotators', 'room', 'photo' (did you mean 'images', a list?)" in listed[5]
    assert listed[5].endswith("--allow annotators,room,photo")
    assert last.startswith("0 good, 55 good but for columns that are not read, 5 bad")
    assert not any((tmp_path / "good").glob("*.parquet"))
    done = CliRunner().invoke(app, ["data", "validate", str(data), "--allow", "annotators,room,photo"])
    assert "55 good, 5 bad" in done.output
    with pytest.raises(DataError, match=r"row 0 .*2 columns are not read: 'annotators', 'room'"):
        read_pairs(data)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"question": "nan"}, "a question is 'nan', an empty value"),
        ({"responses": ["null", "b"]}, "a response is 'null', an empty value"),
        ({"responses": ["[deleted]", "b"]}, "a placeholder and no text"),
        ({"question": "[{'role': 'user', 'content': 'Which?'}]"}, "a value of Python written as text"),
        ({"responses": ["{'text': 'a'}", "b"]}, "a value of Python written as text"),
        ({"responses": ["\u200b", "b"]}, "invisible characters alone"),
        ({"responses": ["caf\u00e9", "cafe\u0301"]}, "the form of Unicode alone"),
        ({"responses": ["a  b", "a b"]}, "differ in blanks"),
    ],
)
def test_data_gone_wrong(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """One among 200 is a note, three are refused with the first row, by training as by `data validate`."""
    good = [row(pair_id=f"p{n}") for n in range(200)]
    few = write(tmp_path / "few.jsonl", [*good, {**row(pair_id="x"), **changed}])
    assert len(PairTable(few)) == 201
    done = CliRunner().invoke(app, ["data", "validate", str(few)])
    assert done.exit_code == 0
    assert "row 200" in done.output
    many = write(tmp_path / "many.jsonl", [*good, *({**row(pair_id=f"x{n}"), **changed} for n in range(3))])
    with pytest.raises(DataError, match=f"row 200: .*{sentence}.*3 of 203 pairs"):
        PairTable(many)
    assert CliRunner().invoke(app, ["data", "validate", str(many)]).exit_code != 0


@pytest.mark.parametrize(
    "text", ["None", "b", "{'action': 'click'}", '{"type": 1}', "[1, 2]", "undefined behaviour", "<b>x</b>"]
)
def test_texts_that_are_meant(text: str, tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [row(pair_id=f"p{n}", responses=[text, "other"]) for n in range(5)])
    assert len(PairTable(data)) == 5


def test_answers_that_unicode_calls_compatible_differ(tmp_path: Path) -> None:
    """A square is no two: only two ways to write one character are the same text."""
    data = write(tmp_path / "p.jsonl", [row(pair_id=f"p{n}", responses=["x\u00b2 = 4", "x2 = 4"]) for n in range(5)])
    assert len(PairTable(data)) == 5


def test_judgments_that_quote_control_tokens_are_counted(tmp_path: Path) -> None:
    judged = row(judgment="<think>It quotes <|image_pad|>.</think><answer>1</answer>")
    data = write(tmp_path / "p.jsonl", [{**judged, "pair_id": "a"}, row(pair_id="b")])
    done = CliRunner().invoke(app, ["data", "validate", str(data)])
    assert done.exit_code == 0
    assert "1 judgments quote control tokens" in done.output


def test_code_that_differs_in_its_indentation_is_no_repetition(tmp_path: Path) -> None:
    texts = ["if a:\n    b()\n    c()", "if a:\n    b()\nc()"]
    assert len(PairTable(write(tmp_path / "p.jsonl", [row(pair_id=f"p{n}", responses=texts) for n in range(5)]))) == 5
