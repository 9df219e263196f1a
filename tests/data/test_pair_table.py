"""Pairs on disk, read in any order: the same pairs as those read at once, a few facts of each in memory."""

from __future__ import annotations

import io
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rewardlab.data import pairs as pair_files
from rewardlab.data.images import check_image
from rewardlab.data.media import Files
from rewardlab.data.pair_table import PairTable, fingerprint_of, light_pairs, pair_facts, select_pairs
from rewardlab.data.pairs import read_pairs, write_jsonl, write_parquet, write_shards
from rewardlab.errors import DataError, MediaError
from rewardlab.types import IMAGE_MARK, Order, PreferencePair
from tests.support.videos import film


def picture(seed: int, kind: str = "JPEG", side: int = 40) -> bytes:
    buffer = io.BytesIO()
    noise = random.Random(seed).randbytes(3 * side * side)
    Image.frombytes("RGB", (side, side), noise).save(buffer, format=kind)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def pairs() -> list[PreferencePair]:
    plain = [
        PreferencePair(
            f"p{n}",
            f"what is {n}?",
            (f"one {n}", f"two {n}"),
            (0, 1, None)[n % 3],
            images=tuple(picture(10 * n + k, ("JPEG", "PNG")[k % 2]) for k in range(n % 3)),
            attempts=("1", "2", "")[n % 3],
            order=(Order.GIVEN, Order.SWAPPED)[n % 2],
            judgment="because" * (n % 2),
        )
        for n in range(40)
    ]
    within = replace(
        plain[0],
        pair_id="within",
        responses=(f"see {IMAGE_MARK}", "no"),
        response_images=((picture(999),), ()),
        images=(picture(7),),
    )
    return [*plain, within]


@pytest.mark.parametrize("form", ["parquet", "shards", "paths", "jsonl"])
def test_any_order_reads_the_same_pairs(
    form: str, pairs: list[PreferencePair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of row groups of four rows, from threads and from a copy in another process."""
    monkeypatch.setattr(pair_files, "GROUP_ROWS", 4)
    path = tmp_path / ("set.jsonl" if form == "jsonl" else "set.parquet" if form == "parquet" else "set")
    if form == "jsonl":
        write_jsonl(pairs, path)
    elif form == "parquet":
        write_parquet(pairs, path)
    else:
        assert len(list(write_shards(pairs, path, rows_per_shard=15, embed=form == "shards"))) == 3
    expected, table = read_pairs(path), PairTable(path)
    assert len(table) == len(expected) == 41
    assert pair_facts(table) == pair_facts(expected)
    places = random.Random(0).sample(range(41), 41)
    assert [table[n] for n in places] == [expected[n] for n in places]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(pickle.loads(pickle.dumps(table)).__getitem__, places)) == [expected[n] for n in places]
    chosen = select_pairs(table, [7, 3, 39])
    assert list(chosen) == [expected[7], expected[3], expected[39]]
    assert list(chosen[1:]) == [expected[3], expected[39]]
    lighter = dict(light_pairs(chosen))
    assert [lighter[n].question for n in range(3)] == [expected[n].question for n in (7, 3, 39)]
    assert [len(lighter[n].images) for n in range(3)] == [len(expected[n].images) for n in (7, 3, 39)]


def test_embedded_pictures_are_not_read_at_the_start(
    pairs: list[PreferencePair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a set that was checked when written; of another one they are, and looked at."""
    write_parquet(pairs, tmp_path / "set.parquet")
    columns: list[list[str]] = []
    read = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, **options: columns.append(options["columns"]) or read(self, **options)
    )
    PairTable(tmp_path / "set.parquet")
    assert not any(column.endswith(".bytes") for column in columns[0])
    assert "question" in columns[0]
    foreign = pq.read_table(tmp_path / "set.parquet").replace_schema_metadata({})
    pq.write_table(foreign, tmp_path / "foreign.parquet")
    assert list(PairTable(tmp_path / "foreign.parquet")) == pairs
    assert any(column.endswith(".bytes") for column in columns[1])


def test_fingerprints(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """A text, a label, an order or a picture of another size is another set; the same set anywhere else is the same."""

    def fingerprint(rows: list[PreferencePair], name: str, form: str) -> str:
        path = tmp_path / name / f"set.{form}"
        path.parent.mkdir(exist_ok=True)
        (write_jsonl if form == "jsonl" else write_parquet)(rows, path)
        return fingerprint_of(PairTable(path))

    others = [
        [replace(pairs[0], question="other"), *pairs[1:]],
        [replace(pairs[0], preferred=1), *pairs[1:]],
        [replace(pairs[0], responses=(pairs[0].responses[0], "other")), *pairs[1:]],
        [replace(pairs[0], attempts="7"), *pairs[1:]],
        [replace(pairs[0], order=Order.SWAPPED), *pairs[1:]],
        [replace(pairs[0], judgment="<think>other</think><answer>1</answer>"), *pairs[1:]],
        [pairs[0], replace(pairs[1], images=(picture(5, side=44),)), *pairs[2:]],
        pairs[:-1],
    ]
    for form in ("parquet", "jsonl"):
        prints = [fingerprint(rows, f"{form}{n}", form) for n, rows in enumerate([pairs, *others, pairs])]
        assert prints[0] == prints[-1]
        assert len(set(prints)) == len(others) + 1


def test_what_is_refused(pairs: list[PreferencePair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the row's number, as where all is read at once: texts before anything is trained, pictures when they are read."""
    write_jsonl(pairs, tmp_path / "set.jsonl")
    lines = (tmp_path / "set.jsonl").read_text().splitlines()
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:2], "{", *lines[2:]]))
    (tmp_path / "label.jsonl").write_text("\n".join([lines[0], json.dumps({**json.loads(lines[1]), "preferred": 7})]))
    for name, message in (
        ("empty", "holds no pairs"),
        ("bad", "line 3: not JSON"),
        ("label", r"row 1 \(line 2\): preferred is 7"),
        ("none", "no such file"),
    ):
        with pytest.raises(DataError, match=message):
            PairTable(tmp_path / f"{name}.jsonl")
    named = next(media for media in (tmp_path / "media").rglob("*.*"))
    whole = named.read_bytes()
    named.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MediaError, match="not a readable image"):
        list(PairTable(tmp_path / "set.jsonl"))
    named.unlink()
    with pytest.raises(MediaError, match=r"cannot be read \(No such file"):
        list(PairTable(tmp_path / "set.jsonl"))
    write_parquet(pairs, tmp_path / "set.parquet")
    monkeypatch.setattr("rewardlab.data.pair_table.MOST_GROUP_BYTES", 100)
    with pytest.raises(DataError, match="is read as a whole for each of its pairs"):
        PairTable(tmp_path / "set.parquet")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([""], r"row 1 \(line 2\), image 0: the path is ''; give .* an empty list"),
        (["good.png", "empty.png"], r"row 1 \(line 2\), image 1, .*empty\.png: the file is empty; expected one of PNG"),
        (["note.png"], r"row 1 \(line 2\), image 0, .*note\.png: not a readable image \(its first bytes are of no image"),
        (["none.png"], r"row 1 \(line 2\), image 0, .*none\.png: cannot be read \(No such file .*; check --images"),
        (["https://host/a.png"], r"row 1 \(line 2\), image 0: https://host/a\.png is not fetched; download it"),
        (["data:image/png;base64,@@"], r"row 1 \(line 2\), image 0: the data URL is not valid base64"),
        ([{"bytes": None, "path": None}], r"row 1 \(line 2\), image 0: holds neither bytes nor a path; give one"),
    ],
)
def test_a_bad_medium_is_named(images: list[object], message: str, tmp_path: Path) -> None:
    """By its file and row, whichever way the set is read; a video as well."""
    (tmp_path / "good.png").write_bytes(picture(1, "PNG"))
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "note.png").write_bytes(b"a note")
    film(tmp_path / "good.mp4", 2)
    row = {"question": "which?", "responses": ["a", "b"], "preferred": 0}
    path = tmp_path / "set.jsonl"
    for read in (read_pairs, lambda path: list(PairTable(path))):
        path.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'images': images})}\n")
        with pytest.raises(MediaError, match=r"set\.jsonl, " + message):
            read(path)
        path.write_text(json.dumps({**row, "videos": ["good.mp4", "empty.png"]}))
        with pytest.raises(MediaError, match=r"set\.jsonl, row 0 \(line 1\), video 1, .*: the file is empty; expected a video"):
            read(path)
    with pytest.raises(MediaError, match=r"video 0, .*note\.png: not a supported video format"):
        Files(tmp_path).video("note.png", "video 0")


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    """With what is expected of it, whichever way it is read."""
    (tmp_path / "bad.txt").write_text("question,chosen\n")
    (tmp_path / "bad.jsonl").write_text("[\n")
    (tmp_path / "latin.jsonl").write_bytes("{'question': 'é'}".encode("latin-1"))
    (tmp_path / "bad.parquet").write_bytes(b"no Parquet")
    for name, message in (
        ("bad.txt", "expected rows as .parquet, .jsonl, .csv"),
        ("none.csv", "no such file"),
        ("bad.jsonl", "line 1: not JSON .*; expected one object a line"),
        ("latin.jsonl", "line 1: not UTF-8; save the file"),
        ("bad.parquet", "not a readable Parquet file .*; write or download it again"),
    ):
        for read in (read_pairs, PairTable):
            with pytest.raises(DataError, match=f"{name}.*{message}"):
                read(tmp_path / name)


def test_bytes_win_over_paths(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Of a set that was checked when written, as ``datasets`` writes it again: the name of each file stands beside its bytes,
    and no such file is there. A path without bytes is still looked for."""
    write_parquet(pairs, tmp_path / "set.parquet")
    schema = pq.read_schema(tmp_path / "set.parquet")
    rows = pq.read_table(tmp_path / "set.parquet").to_pylist()
    for row in rows:
        for entry in (*row["images"], *row["response_images"][0]):
            entry["path"] = "image.png"
    path = tmp_path / "again.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    table = PairTable(path)
    assert list(table) == pairs
    assert [len(pair.images) for _, pair in light_pairs(table)] == [len(pair.images) for pair in pairs]
    rows[4]["images"][0]["bytes"] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    with pytest.raises(MediaError, match=r"row 4, image 0, .*image\.png: cannot be read"):
        list(PairTable(path))


def test_pictures_by_their_ends() -> None:
    """Whole ones pass, also with something behind the end; cut ones do not."""
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF"):
        check_image(picture(1, kind))
    for kind in ("JPEG", "PNG"):
        check_image(picture(1, kind) + bytes(1000))  # as some cameras write
        with pytest.raises(MediaError, match="not a readable image"):
            check_image(picture(1, kind)[:-400])
    data = bytearray(picture(1, "PNG"))
    data[len(data) // 2] ^= 255  # of one that is whole to its end
    with pytest.raises(MediaError, match="not a readable image"):
        check_image(bytes(data))
    at = picture(1, "PNG").index(b"IEND") + 4
    check_image(picture(1, "PNG")[:at] + bytes(4))  # a wrong check sum of a picture that can be decoded
    with pytest.raises(MediaError, match="not a readable image"):
        check_image(b"GIF8")
    with pytest.raises(MediaError, match="is too small"):
        check_image(picture(1, side=1))


def test_lines_that_hold_nothing(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """A byte order mark, empty lines, line breaks of other kinds within texts: each row is itself, in a folder of files too."""
    (tmp_path / "set").mkdir()
    write_jsonl([replace(pairs[0], question="a\u2028b\x85c")], tmp_path / "set" / "0.jsonl")
    write_jsonl(pairs[3:6], tmp_path / "set" / "1.jsonl")
    first = tmp_path / "set" / "0.jsonl"
    line = first.read_bytes()
    first.write_bytes(b"\xef\xbb\xbf\r\n" + line + "\u2028\n \n".encode() + line.replace(b'"p0"', b'"again"'))
    table = PairTable(tmp_path / "set")
    names = ["p0", "again", "p3", "p4", "p5"]
    assert [facts.pair_id for facts in table.facts] == names
    assert [table[n].pair_id for n in range(5)] == names
    assert [table[n] for n in (2, 3, 4)] == pairs[3:6]


def test_other_pictures_are_another_set(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Of the same sizes, in other rows, or beside the file: a run on them is another run."""
    exchanged = [replace(pairs[1], images=pairs[4].images), *pairs[2:4], replace(pairs[4], images=pairs[1].images)]
    assert [len(pair.images) for pair in exchanged] == [len(pair.images) for pair in pairs[1:5]]
    for embed in (True, False):
        prints = set()
        for name, rows in (("a", pairs[1:5]), ("b", exchanged)):
            list(write_shards(rows, tmp_path / f"{name}{embed}", embed=embed))
            prints.add(PairTable(tmp_path / f"{name}{embed}").fingerprint)
        assert len(prints) == 2


def test_a_set_is_looked_at_once(pairs: list[PreferencePair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its media are checked when that is asked for, and not whenever texts are gone through."""
    write_jsonl(pairs, tmp_path / "set.jsonl")
    checks: list[object] = []
    check = check_image
    monkeypatch.setattr(
        "rewardlab.data.pair_table.check_image", lambda *args, **more: checks.append(args) or check(*args, **more)
    )
    table = PairTable(tmp_path / "set.jsonl")
    assert len(list(light_pairs(table))) == len(list(light_pairs(table))) == 41
    assert not checks
    for number in range(41):
        table.look_at(number)
    assert len(checks) == sum(len(pair.images) + sum(map(len, pair.response_images)) for pair in pairs)


def test_a_set_that_changes_or_breaks_while_it_is_read(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """One sentence, and never another pair in place of the one that was meant."""
    write_jsonl(pairs, tmp_path / "set.jsonl")
    table = PairTable(tmp_path / "set.jsonl")
    lines = (tmp_path / "set.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "set.jsonl").write_text("".join([lines[3], *lines[1:3], lines[0], *lines[4:]]))
    with pytest.raises(DataError, match="row 0: has changed since the start"):
        table[0]
    (tmp_path / "set.jsonl").unlink()
    with pytest.raises(DataError, match="cannot be read any more"):
        table[1]
    write_parquet(pairs, tmp_path / "set.parquet")
    whole = (tmp_path / "set.parquet").read_bytes()
    table = PairTable(tmp_path / "set.parquet")
    (tmp_path / "set.parquet").write_bytes(whole[:2000] + bytes(len(whole) - 2000))
    with pytest.raises(DataError, match="not a readable Parquet file"):
        table[5]
    place = whole.index(b"what is ")
    (tmp_path / "set.parquet").write_bytes(whole[: place - 60] + bytes(90) + whole[place + 30 :])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        PairTable(tmp_path / "set.parquet")
