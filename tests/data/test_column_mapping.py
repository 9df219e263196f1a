"""The same pairs in CSV, JSON, saved datasets and other columns: read without a mapping, or by a suggested one that builds."""

from __future__ import annotations

import csv
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import MappingConfig, load_config
from rewardlab.data.candidates import read_candidates
from rewardlab.data.column_mapping import OPEN, guess_mapping, suggested_mapping
from rewardlab.data.conversations import content_parts, read_content
from rewardlab.data.images import decode_image, encode_png
from rewardlab.data.inputs import candidates_of_texts
from rewardlab.data.pair_table import PairTable, ParquetRows
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.data.ratings import tie_of
from rewardlab.data.recipes import Rejected, convert_source, recipe_of
from rewardlab.data.row_files import data_files_of
from rewardlab.data.rows import from_row
from rewardlab.errors import DataError, MediaError
from rewardlab.types import PreferencePair, Tie
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
        write_lines(path, rows)
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


@pytest.mark.parametrize("rows", [CHOSEN, SIDES], ids=["chosen", "sides"])
@pytest.mark.parametrize("form", ["csv", "tsv", "json", "jsonl", "saved", "parquet"])
def test_training_reads_what_a_benchmark_reads(form: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """The same pairs under the same labels, in any order, from threads and from a copy in another process."""
    rows = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    rows[7] |= {"prompt" if "prompt" in rows[7] else "question": 'What is 7,\n or "seven"?'}
    if form == "parquet":
        path = tmp_path / "pairs.parquet"
        name = "image" if "image" in rows[0] else "photo"
        pictures = [row | {name: {"bytes": png((28 + n % 3, 28)), "path": None}} for n, row in enumerate(rows)]
        pq.write_table(pa.Table.from_pylist(pictures), path)
    else:
        path = write(tmp_path, form, rows)
    expected, table = read_pairs(path, images=tmp_path), PairTable(path, images=tmp_path)
    places = random.Random(0).sample(range(60), 60)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(pickle.loads(pickle.dumps(table)).__getitem__, places)) == [expected[n] for n in places]
    assert [pair.question for _, pair in table.light_pairs()] == [pair.question for pair in expected]
    assert [len(pair.images) for _, pair in table.light_pairs()] == [1] * 60


def test_a_picture_within_a_mapped_parquet_is_looked_at(tmp_path: Path) -> None:
    """As those of the format's own column are."""
    row = {"prompt": "What?", "chosen": "a", "rejected": "b", "photo": {"bytes": b"GIF89a no picture", "path": None}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "p.parquet")
    with pytest.raises(MediaError, match="row 0, image 0: not a readable image"):
        PairTable(tmp_path / "p.parquet").look_at(0)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_what_is_held_in_memory_is_bounded(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, form, [{name: value for name, value in row.items() if name != "id"} for row in CHOSEN])
    monkeypatch.setattr("rewardlab.data.pair_table.MOST_HELD_BYTES", 1000)
    with pytest.raises(DataError, match="would all be loaded into memory; `rewardlab data convert FILE"):
        PairTable(data)


CELLS = "question,response_a,response_b,winner,level,teacher_share,order,attempts\n"


def test_cells_and_the_floats_of_pandas(tmp_path: Path) -> None:
    """Numbers of a CSV are read, empty cells are nothing; a column of integers with a gap comes as floats."""
    lines = ["q0,x,y,a,3,0.75,,\n", "q1,x,y,b,,,swapped,2\n", "q2,x,y,,2.0,1,given,\n", "q3,x,y,b,nan,,,\n"]
    (tmp_path / "c.csv").write_text(CELLS + "".join(lines))
    for pairs in (read_pairs(tmp_path / "c.csv"), list(PairTable(tmp_path / "c.csv"))):
        assert [pair.level for pair in pairs] == [3, None, 2, None]
        assert [pair.teacher_share for pair in pairs] == [0.75, None, 1, None]
        assert [pair.order.value for pair in pairs] == ["given", "swapped", "given", "given"]
        assert [pair.preferred for pair in pairs] == [0, 1, None, 1]
    rows = [{"question": "q", "responses": ["x", "y"], "preferred": value} for value in (1.0, float("nan"), None, 0)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    for path in (tmp_path / "p.jsonl", tmp_path / "p.parquet"):
        assert [repr(pair.preferred) for pair in read_pairs(path)] == ["1", "None", "None", "0"]
    (tmp_path / "l.csv").write_text('question,responses,images,preferred\nq,"[""x"", ""y""]",,1.0\n')
    (pair,) = read_pairs(tmp_path / "l.csv")
    assert (pair.responses, pair.preferred, pair.images) == (("x", "y"), 1, ())
    (tmp_path / "f.csv").write_text("question,answer_1,answer_2,label\nq,x,y,2.0\nq,x,y,1.0\n")
    assert [pair.preferred for pair in read_pairs(tmp_path / "f.csv")] == [1, 0]


@pytest.mark.parametrize(
    ("cells", "message"),
    [("q,x,y,a,hard,,,", "'level' is 'hard'"), ("q,x,y,a,1.5,,,", "'level' is 1.5"), ("q,x,y,a,,2,,", "'teacher_share' is 2")],
)
def test_cells_that_are_no_numbers(cells: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(CELLS + "q0,x,y,a,,,,\n\n" + cells + "\n")
    for read in (read_pairs, PairTable):
        with pytest.raises(DataError, match=rf"c.csv, row 1 \(line 4\): {message}"):
            read(tmp_path / "c.csv")


def test_rows_and_lines(tmp_path: Path) -> None:
    """A row is counted from 0 over the set, a line from 1 in its file, blank ones too."""
    good = json.dumps({"question": "q", "responses": ["x", "y"], "preferred": 0})
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.jsonl").write_text(f"{good}\n{good}\n")
    (folder / "b.jsonl").write_text(f"\n\n{good}\n" + good.replace('"y"', '""') + "\n")
    for read in (read_pairs, PairTable):
        with pytest.raises(DataError, match=r"set, row 3 \(b.jsonl, line 4\): a response is empty"):
            read(folder)
        with pytest.raises(DataError, match=r"b.jsonl, row 1 \(line 4\): a response is empty"):
            read(folder / "b.jsonl")


def test_splits_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a saved dict, and of folders and files that are called as splits are; a folder of one split says nothing."""
    from datasets import Dataset, DatasetDict

    rows = [{"question": f"q{n}", "responses": ["x", "y"], "preferred": 0} for n in range(3)]
    DatasetDict({"train": Dataset.from_list(rows), "hard": Dataset.from_list(rows[:1])}).save_to_disk(str(tmp_path / "saved"))
    for name in ("train-00000-of-00001", "test-00000-of-00001", "part-0"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    assert len(read_pairs(tmp_path / "saved")) == len(PairTable(tmp_path / "saved")) == 4
    logged = "".join(capsys.readouterr())
    assert logged.count("saved: all splits are read, train (1), hard (1), of 2 files; name ") == 1
    assert f"name {tmp_path}/saved/train for one alone" in logged
    assert len(read_pairs(tmp_path / "saved" / "hard")) == 1
    assert "splits" not in "".join(capsys.readouterr())
    assert len(read_pairs(tmp_path)) == 9
    assert "all splits are read, test (1), train (1), of 3 files" in "".join(capsys.readouterr())


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
    done = CliRunner().invoke(app, [*command, "--allow", "id", "--cluster", "id"])
    assert done.exit_code == 0, done.output
    out = tmp_path / "c.parquet"
    done = CliRunner().invoke(app, ["data", "convert", str(data), "--allow", "id", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert len(PairTable(out)) == 60
    with pytest.raises(DataError, match=r"row 0 \(line 2\): the column 'id' is not read"):
        PairTable(data)
    assert len(PairTable(data, allow_columns=["id"])) == 60


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["prompt", "query", "chosen", "rejected"], "question prompt or query"),
        (["prompt", "chosen", "rejected", "photo", "screenshot"], "images photo or screenshot"),
        (["prompt", "chosen", "rejected", "answer_a", "answer_b", "winner"], "not uniquely"),
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
        bad = mapping.row_of({"question": "q", columns[0]: "x", columns[1]: "y", "preferred": "third"}, "row 3")
        assert isinstance(bad, DataError)
        assert "row 3: 'preferred' is 'third'; expected" in str(bad)


def test_pictures_in_a_struct_are_left_where_they_are(tmp_path: Path) -> None:
    """As the Hub's Image() columns are: a pass over the texts reads no bytes."""
    image, other = {"bytes": b"x" * 9, "path": None}, {"bytes": b"y" * 9, "path": "p"}
    table = {"question": ["q"], "chosen": ["a"], "rejected": ["b"], "image": [image], "other": [other]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    rows = list(ParquetRows(tmp_path / "a.parquet").light_rows(by_content=False))
    assert len(rows) == 1
    assert b"x" * 9 not in str(rows).encode()
    assert b"y" * 9 not in str(rows).encode()


def test_files_beside_those_that_are_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jsonl", "b.csv"):
        (tmp_path / name).write_text("")
    assert data_files_of(tmp_path) == [tmp_path / "a.jsonl"]
    assert "b.csv beside a.jsonl are not read" in " ".join(capsys.readouterr().err.split())


def test_a_folder_of_tables_names_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"without .parquet or .jsonl files$"):
        data_files_of(tmp_path)
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match=rf"without .parquet or .jsonl files; name {tmp_path}/a.csv$"):
        data_files_of(tmp_path)


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", ""), ("a.csv", ""), ("b.csv", "question,chosen,rejected\n")])
def test_a_set_without_pairs_is_not_valid(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    result = CliRunner().invoke(app, ["data", "validate", str(tmp_path / name)])
    assert result.exit_code == 1
    assert "holds no pairs" in result.output


@pytest.mark.parametrize("read", [read_pairs, PairTable])
@pytest.mark.parametrize("columns", ["question,responses,preferred", "prompt,images,chosen,rejected"])
def test_a_cell_that_is_nested_too_deeply(columns: str, read: Any, tmp_path: Path) -> None:
    cells = f'q,"{"[" * 200_000}",0' + (",1" if columns.startswith("prompt") else "")
    (tmp_path / "c.csv").write_text(f"{columns}\n{cells}\n")
    with pytest.raises(DataError, match=r"row 0 \(line 2\): a list in a cell is nested too deeply to be read"):
        read(tmp_path / "c.csv")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_is_suggested_builds(tmp_path: Path) -> None:
    """Nested texts, two responses with a label of words, ties that are told from the two, an image under any name."""
    (tmp_path / "a.png").write_bytes(png())
    labels = ["model_a", "model_b", "tie"]
    rows = [
        {"uid": f"u{n}", "prompt": f"What is {n}?", "look": "a.png", "response_a": "yes", "response_b": "no", "winner": label}
        for n, label in enumerate(labels * 3)
    ]
    data = write_lines(tmp_path / "My pairs.jsonl", rows)
    shown = CliRunner().invoke(app, ["data", "validate", str(data), "--suggest"])
    assert shown.exit_code == 0, shown.output
    mapping = yaml.safe_load(shown.output)
    assert mapping == {
        "name": "my_pairs",
        "id": "uid",
        "question": "prompt",
        "images": ["look"],
        "responses": ["response_a", "response_b"],
        "preferred": "winner",
        "first": OPEN,
        "second": OPEN,
        "ties": labels,
    }
    full = shown.output.replace(f"first: {OPEN}", "first: model_a").replace(f"second: {OPEN}", "second: model_b")
    (tmp_path / "m.yaml").write_text(full.replace(json.dumps(labels), '["tie"]'))
    command = ["data", "build", str(tmp_path / "m.yaml"), "--from", str(data), "--against", "none", "similarity=0"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "set")])
    assert done.exit_code == 0, done.output
    pairs = read_pairs(tmp_path / "set")
    assert len(pairs) == 6
    assert {pair.responses[pair.preferred or 0] for pair in pairs if pair.pair_id in ("u0", "u3")} == {"yes"}
    assert all(len(pair.images) == 1 for pair in pairs)


def test_what_no_name_tells_is_left_open(tmp_path: Path) -> None:
    rows = [{"conversations": [{"value": f"q{n}"}], "good": f"a{n}", "bad": f"b{n}"} for n in range(9)]
    text = suggested_mapping(write_lines(tmp_path / "p.jsonl", rows))
    assert f"question: {OPEN}  # no column by a known name; there are: conversations.0.value, good, bad" in text
    assert f"chosen: {OPEN}" in text
    filled = text.replace(f"question: {OPEN}", "question: conversations.0.value").replace(f"chosen: {OPEN}", "chosen: good")
    (tmp_path / "m.yaml").write_text(filled.replace(f"rejected: {OPEN}", "rejected: bad"))
    command = ["data", "build", str(tmp_path / "m.yaml"), "--from", str(tmp_path / "p.jsonl"), "--against", "none"]
    done = CliRunner().invoke(app, [*command, "similarity=0", "--out", str(tmp_path / "set")])
    assert done.exit_code == 0, done.output
    assert "kept 9" in done.output


def test_known_labels_are_filled_in(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer_1": "x", "answer_2": "y", "preferred": label} for label in (1, 2, 0, 1)]
    mapping = yaml.safe_load(suggested_mapping(write_lines(tmp_path / "p.jsonl", rows)))
    assert (mapping["first"], mapping["second"], mapping["ties"]) == ("1", "2", ["0"])


def test_what_needs_no_mapping(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "p.jsonl", [{"question": "q", "responses": ["a", "b"]}])
    with pytest.raises(DataError, match="has the columns of a pair already"):
        suggested_mapping(data)
    with pytest.raises(DataError, match="has no row of columns"):
        suggested_mapping(write_lines(tmp_path / "e.jsonl", []))
    (tmp_path / "wrong.csv").write_text("prompt,good,bad\nWhat?,yes,no\n")
    checked = CliRunner().invoke(app, ["data", "validate", str(tmp_path / "wrong.csv")])
    assert checked.exit_code == 1
    assert "`rewardlab data validate FILE --suggest` prints a mapping" in checked.output


@pytest.mark.parametrize("name", ["2024", "null", "on", "1e5", "~", "a\nb"])
def test_a_name_is_a_text(name: str, tmp_path: Path) -> None:
    """Whatever YAML would take it for."""
    text = suggested_mapping(write_lines(tmp_path / f"{name}.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}]))
    (tmp_path / "m.yaml").write_text(text)
    assert load_config(MappingConfig, tmp_path / "m.yaml").name == (name.replace("\n", "_") if name != "~" else "mine")


@pytest.mark.parametrize("between", ["\n", "\r", "\x85", "\u2028", "\x7f", "\ufeff", '"', "\\", " 😀 "])
@pytest.mark.parametrize("known", [True, False])
def test_columns_of_any_name(between: str, known: bool, tmp_path: Path) -> None:
    """They stay in their line, in quotes and in comments."""
    columns = [f"{what}{between}of it" for what in ("Answer A", "Answer B", "picture")]
    first = "prompt" if known else f"what{between}it is"
    rows = [{first: "q", columns[0]: f"a{n}", columns[1]: f"b{n}", columns[2]: "x.png", "id": "1"} for n in range(9)]
    mapping = yaml.safe_load(suggested_mapping(write_lines(tmp_path / "p.jsonl", rows)))
    expected = {"name": "p", "id": "id", "question": first if known else OPEN, "images": [columns[2]]}
    assert mapping == {**expected, "chosen": OPEN, "rejected": OPEN}


@pytest.mark.parametrize(
    ("label", "tie"),
    [
        *((label, Tie.TIE) for label in ("tie", "Tied", "tievote", "both_good", "same", "equal", "no preference", "neither")),
        *((label, Tie.BOTH_BAD) for label in ("tie (bothbad)", "bothbad_vote", "both_bad", "Both are bad")),
        *((label, None) for label in ("a", "model_a", "leftvote", "1", "better", None, "")),
    ],
)
def test_a_label_that_names_neither_is_a_tie(label: str | None, tie: Tie | None) -> None:
    assert tie_of(label) is tie


def test_ties_of_a_file_are_kept_and_are_no_side(tmp_path: Path) -> None:
    """By every spelling: a label of a mapping that is guessed, of the pair format, and equal scores of a mapping."""
    guessed = {"question": "q", "response_a": "x", "response_b": "y", "winner": "tie (bothbad)"}
    own = {"question": "q", "responses": ["x", "y"], "preferred": "tie"}
    for number, (row, tie) in enumerate(
        (
            (guessed, Tie.BOTH_BAD),
            (own, Tie.TIE),
            ({**own, "preferred": "Tie"}, Tie.TIE),
            ({**own, "preferred": " BOTH_BAD "}, Tie.BOTH_BAD),
            ({**own, "preferred": "tie", "tie": "Both bad"}, Tie.BOTH_BAD),
            ({**own, "preferred": None, "tie": "tie"}, Tie.TIE),
        )
    ):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(json.dumps(row) + "\n")
        [pair] = read_pairs(file)
        assert (pair.preferred, pair.tie) == (None, tie)
        write_parquet([pair], tmp_path / "p.parquet")
        assert read_pairs(tmp_path / "p.parquet") == [pair]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({**own, "preferred": 1, "tie": "tie"}) + "\n")
    with pytest.raises(DataError, match="'tie' is 'tie' and 'preferred' 1"):
        read_pairs(bad)


def test_ranks_of_several_answers_make_pairs(tmp_path: Path) -> None:
    """1 is the best; every two answers are a pair, equal ranks a tie that is kept where it is asked for."""
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps({"prompt": "q", "responses": ["a", "b", "c"], "rankings": [2, 1, 2]}) + "\n")
    assert 'ranks: ["rankings"]' in suggested_mapping(file)
    config = MappingConfig(name="r", question="prompt", responses=["responses"], ranks=["rankings"], keep_ties=True)
    pairs = [pair for pair in convert_source(recipe_of(config), file) if isinstance(pair, PreferencePair)]
    better = {frozenset(pair.responses): pair.preferred if pair.tie else pair.responses[pair.preferred or 0] for pair in pairs}
    assert better == {frozenset("ab"): "b", frozenset("bc"): "b", frozenset("ac"): None}
    [row] = [
        row
        for row in convert_source(recipe_of(config.model_copy(update={"keep_ties": False})), file)
        if isinstance(row, Rejected)
    ]
    assert row.reason == "tie"


@pytest.mark.parametrize("embedded", [False, True], ids=["paths", "bytes"])
def test_pictures_of_one_question_are_on_both_sides(embedded: bool, tmp_path: Path) -> None:
    """Their texts are equal throughout, so the place must not depend on texts alone; every reader finds the same place."""
    rows = []
    for number in range(40):
        pictures = [encode_png(Image.new("RGB", (30, 20), (number, shade, 9))) for shade in (0, 200)]
        for name, data in zip("bw", pictures, strict=True):
            (tmp_path / f"{name}{number}.png").write_bytes(data)
        media = [{"bytes": data, "path": None} for data in pictures] if embedded else [f"{n}{number}.png" for n in "bw"]
        rows.append({"prompt": "Draw.", "chosen": "<image>", "rejected": "<image>", "images": media})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    table = PairTable(tmp_path / "p.parquet")
    pairs = list(table)
    assert 10 < sum(pair.preferred or 0 for pair in pairs) < 30
    assert [pair.preferred for _, pair in table.light_pairs()] == [pair.preferred for pair in pairs]
    for pair in pairs:
        assert decode_image(pair.response_images[pair.preferred or 0][0]).getpixel((1, 1))[1] == 0  # type: ignore[index]


def test_pictures_of_answers_in_a_column_of_their_own(tmp_path: Path) -> None:
    """A file that names its sides may list them as a pair does; [[], []] says that marks of answers are text."""
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(png((28, ord(name[0]))))
    row = {"prompt": "Which?", "response_a": "One.", "response_b": "<image>\nTwo.", "winner": "a", "images": ["c.png"]}
    lists: tuple[list[list[str]], ...] = ([["a.png"], ["b.png"]], [[], []])
    [own, none] = PairTable(write_lines(tmp_path / "x.jsonl", [{**row, "response_images": some} for some in lists]))
    assert own.responses == ("\ufffcOne.", "\ufffc\nTwo.")
    assert [*own.images, *own.response_images[0], *own.response_images[1]] == [
        (tmp_path / name).read_bytes() for name in ("c.png", "a.png", "b.png")
    ]
    assert (none.responses, none.response_images) == (("One.", "<image>\nTwo."), ((), ()))
    twice = row | {"response_a": [{"type": "image", "image": "a.png"}], "response_b": "Two.", "response_images": lists[0]}
    [part] = PairTable(write_lines(tmp_path / "p.jsonl", [twice | {"response_images": lists[1]}]))
    assert (part.responses, len(part.response_images[0])) == (("\ufffc", "Two."), 1)
    with pytest.raises(DataError, match="the responses hold images, and 'response_images' holds others"):
        PairTable(write_lines(tmp_path / "y.jsonl", [twice]))


def test_a_system_column_belongs_to_chats_alone(tmp_path: Path) -> None:
    """Beside texts it is any column: often the name of the model."""
    config = MappingConfig(name="r", question="prompt", chosen="a", rejected="b")
    file = write_lines(tmp_path / "r.jsonl", [{"prompt": "Why?", "a": "yes", "b": "no", "system": "gpt-4"}])
    [pair] = convert_source(recipe_of(config), file)
    assert isinstance(pair, PreferencePair)
    assert pair.question == "Why?"
    chat = {"prompt": [{"role": "user", "content": "Why?"}], "a": "yes", "b": "no", "system": "Be brief."}
    [pair] = convert_source(recipe_of(config), write_lines(tmp_path / "c.jsonl", [chat]))
    assert isinstance(pair, PreferencePair)
    assert pair.question == "System: Be brief.\nUser: Why?"


def test_a_gap_among_ties_is_none() -> None:
    """pandas keeps it as NaN."""
    row = {"question": "q", "responses": ["x", "y"], "preferred": 1.0, "tie": float("nan")}
    assert (from_row(row, index=0).preferred, from_row(row, index=0).tie) == (1, None)


def test_a_mark_of_ours_beside_media_is_no_place() -> None:
    content = read_content([{"type": "text", "text": "a\ufffcb"}, {"type": "image", "image": "c.png"}])
    assert content_parts(content) == [{"type": "text", "text": "ab"}, {"type": "image", "image": "c.png"}]


def test_a_tool_call_is_read(tmp_path: Path) -> None:
    """It is no part of the content, and would be lost."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "zoom", "arguments": "{}"}}]}
    chosen = [call, {"role": "tool", "content": "42"}, {"role": "assistant", "content": "It is 42."}]
    row = {"prompt": "q", "chosen": chosen, "rejected": [{"role": "assistant", "content": "No."}]}
    [pair] = read_pairs(write_lines(tmp_path / "p.jsonl", [row]))
    assert pair.responses[pair.preferred or 0] == "Assistant: Tool call: zoom({})\nTool: 42\nAssistant: It is 42."


def test_a_response_that_is_missing_is_named(tmp_path: Path) -> None:
    """It is no empty answer: a ranking would judge that."""
    with pytest.raises(DataError, match="response 1 is missing"):
        candidates_of_texts("q", ["a", None, "b"])
    file = write_lines(tmp_path / "r.jsonl", [{"question": "q", "responses": ["a", None, "b"]}])
    with pytest.raises(DataError, match=r"row 0.*response 1 is missing"):
        read_candidates(file)


REAL = Path(__file__).parents[3] / "shared" / "data" / "real"


@pytest.mark.skipif(not REAL.is_dir(), reason="real files are not at ../shared/data/real")
def test_real_files_become_the_pairs_of_a_person() -> None:
    """LLaMA-Factory's conversations; demonstrations without a second answer are refused with the reason."""
    pairs = read_pairs(REAL / "dpo_en_demo.json")
    rows = json.loads((REAL / "dpo_en_demo.json").read_text())
    assert len(pairs) == len(rows) == 300
    for pair, row in zip(pairs, rows, strict=True):
        assert pair.responses[pair.preferred or 0] == row["chosen"]["value"]
        assert pair.responses[1 - (pair.preferred or 0)] == row["rejected"]["value"]
        assert pair.question.endswith(row["conversations"][-1]["value"])
        assert all(turn["value"] in pair.question for turn in row["conversations"])
    assert len(read_pairs(REAL / "v1_dpo_demo.jsonl")) == 10
    for name in ("kto_en_demo.json", "mllm_demo.json", "mllm_video_demo.json", "v1_multimodal_demo.jsonl"):
        with pytest.raises(DataError, match="one answer each, but no second answer"):
            read_pairs(REAL / name)
    assert 'responses: ["video_left", "video_right"]' in suggested_mapping(REAL / "genai_bench_video.json")
    assert 'ties: ["bothbad_vote", "tievote"]' in suggested_mapping(REAL / "genai_bench_video.json")
    assert 'scores: ["model1_overall_score", "model2_overall_score"]' in suggested_mapping(REAL / "edit_reward_valid.json")
