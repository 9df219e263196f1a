"""Rows that somebody else wrote: embedded images are looked at, numbers go on from file to file, media keep their places."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rewardlab.data import media as media_module
from rewardlab.data import rows as rows_module
from rewardlab.data.files import data_hash
from rewardlab.data.images import decode_image
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import BadRow, read_pairs, validate_rows, write_parquet
from rewardlab.data.rows import with_blank_images, with_frames
from rewardlab.data.votes import read_votes, require_same_run
from rewardlab.errors import DataError, MediaError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, PreferencePair


def png(color: tuple[int, ...] = (200, 30, 30), size: tuple[int, int] = (28, 28)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB" if len(color) == 3 else "RGBA", size, color).save(buffer, format="PNG")
    return buffer.getvalue()


def write_foreign(path: Path, image: bytes) -> Path:
    """Parquet as another program writes it, with one sound row before the one in question."""
    rows = [
        {"question": f"q{n}", "responses": ["a", "b"], "preferred": 0, "images": [{"bytes": data, "path": None}]}
        for n, data in enumerate((png(), image))
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("read", [read_pairs, lambda path: list(PairTable(path))], ids=["pairs", "table"])
def test_embedded_images_of_others_are_looked_at(read: Any, tmp_path: Path) -> None:
    """What is no image is said with its row; what any decoder shows otherwise becomes what is seen."""
    with pytest.raises(MediaError, match=r"row 1, image 0: not a readable image"):
        read(write_foreign(tmp_path / "bad.parquet", b"not an image"))
    found = read(write_foreign(tmp_path / "clear.parquet", png((200, 30, 30, 0))))
    with Image.open(io.BytesIO(found[1].images[0])) as image:
        assert (image.mode, image.getpixel((3, 3))) == ("RGB", (255, 255, 255))


def test_ones_own_images_are_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were looked at when they were written."""
    pairs = [PreferencePair("p", "q", ("a", "b"), 0, images=(png(),))]
    write_parquet(pairs, tmp_path / "own.parquet")

    def refuse(data: bytes, **_: Any) -> bytes:
        raise AssertionError("decoded")

    monkeypatch.setattr(media_module, "plain_image", refuse)
    assert read_pairs(tmp_path / "own.parquet") == pairs


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two files of three rows each, without ids."""
    folder = tmp_path / "set"
    folder.mkdir()
    for part in range(2):
        rows = [{"question": f"q{3 * part + n}", "responses": ["a", "b"], "preferred": 0} for n in range(3)]
        (folder / f"part-{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_rows_are_counted_over_all_files(shards: Path) -> None:
    """A bad one is named by its number in the set, and pairs without an id of their own have different ones."""
    ids = [pair.pair_id for pair in read_pairs(shards)]
    assert len(set(ids)) == 6
    assert [pair.pair_id for pair in PairTable(shards)] == ids
    lines = (shards / "part-1.jsonl").read_text().splitlines()
    (shards / "part-1.jsonl").write_text("\n".join([lines[0], '{"question": 3}', lines[2]]) + "\n")
    bad = [item for item in validate_rows(shards) if isinstance(item, BadRow)]
    assert [item.index for item in bad] == [4]
    assert "row 4" in str(bad[0].error)
    for read in (read_pairs, PairTable):
        with pytest.raises(DataError, match="row 4"):
            read(shards)


def test_each_video_stands_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of the first in the first place, of the second in the second, and an image between them."""
    monkeypatch.setattr(rows_module, "frames_of_video", lambda video, number, **_: (video + b"0", video + b"1"))
    pair = PreferencePair(
        "p", f"{VIDEO_MARK} then {IMAGE_MARK}, {VIDEO_MARK}", ("a", "b"), 0, images=(b"i",), videos=(b"x", b"y")
    )
    shown = with_frames(pair)
    assert shown.images == (b"x0", b"x1", b"i", b"y0", b"y1")
    assert shown.question == f"{2 * IMAGE_MARK} then {IMAGE_MARK}, {2 * IMAGE_MARK}"
    assert shown.videos == ()


def test_blank_images_within_responses() -> None:
    """The control takes away what responses show, too: one colour, and the sizes as they were."""
    sizes = ((28, 30), (30, 28))
    pictures = tuple(Image.new("RGB", size, (0, 0, 0)) for size in sizes)
    encoded = []
    for picture in pictures:
        picture.paste((200, 30, 30), (0, 0, 14, 14))
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG")
        encoded.append(buffer.getvalue())
    pair = PreferencePair("p", "q", (IMAGE_MARK, IMAGE_MARK), 0, response_images=((encoded[0],), (encoded[1],)))
    (blank,) = with_blank_images([pair])
    shown = [decode_image(images[0]) for images in blank.response_images]
    assert [image.size for image in shown] == list(sizes)
    assert [len(image.getcolors() or ()) for image in shown] == [1, 1]


def test_what_the_endpoint_broke_is_no_vote(tmp_path: Path) -> None:
    """Of the votes of a run those that failed are left out; one without a verdict is a vote."""
    votes = [
        {"order": "given", "choice": "first" if status == "ok" else None, "status": status, "text": status}
        for status in ("ok", "error", "timeout", "no_verdict")
    ]
    control = {"pass": "blank", "row": 0, "votes": votes}
    lines = [{"identity": {}}, {"pass": "votes", "row": 3, "votes": votes}, control]
    (tmp_path / "votes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(read_votes(tmp_path / "votes.jsonl"))
    assert [(vote.row, vote.text, vote.choice is None) for vote in found] == [(3, "ok", False), (3, "no_verdict", True)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"pass": "votes", "row": -3, "votes": [{"order": "given", "choice": null, "text": ""}]}', "row is -3"),
        ('{"pass": "votes", "row": "zero", "votes": [{"order": "given", "choice": null, "text": ""}]}', "row is 'zero'"),
        ('{"pass": "votes", "row": 0, "votes": [{"order": "given", "choice": null, "text": null}]}', "text is None"),
        ('{"pass": "votes", "row": 0, "votes": [5]}', "no attribute"),
        ('{"pass": "votes", "votes": [5]}', "lacks 'row'"),
        ("[", "Expecting value"),
    ],
)
def test_damaged_votes_name_their_line(line: str, what: str, tmp_path: Path) -> None:
    good = {"pass": "votes", "row": 0, "votes": [{"order": "given", "choice": "first", "text": "x"}]}
    path = tmp_path / "votes.jsonl"
    path.write_text("".join(f"{text}\n" for text in (json.dumps({"identity": {}}), json.dumps(good), line)))
    with pytest.raises(DataError, match=rf"votes\.jsonl, line 3: not the votes of a generative judge \(.*{what}"):
        list(read_votes(path))


def test_files_that_hold_no_votes(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("missing", ".", "binary", "empty"):
        with pytest.raises(DataError, match=r"expected a votes\.jsonl"):
            list(read_votes(tmp_path / name))


def test_votes_of_another_run(tmp_path: Path) -> None:
    """Votes name pairs by row: on another file they are votes on other pairs."""
    data, votes = tmp_path / "pairs.jsonl", tmp_path / "votes.jsonl"
    data.write_text("{}\n")
    votes.write_text(json.dumps({"identity": {"data": data_hash(data), "template": "abc"}}) + "\n")
    require_same_run(votes, data)
    require_same_run(votes, data, template="abc")
    with pytest.raises(DataError, match="another prompt template"):
        require_same_run(votes, data, template="xyz")
    data.write_text("{}\n{}\n")
    with pytest.raises(DataError, match="benchmark the judge on this --data"):
        require_same_run(votes, data)
