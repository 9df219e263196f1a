"""Which files a set of pairs may name: those below the folder that paths start at, and whole paths."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.media import check_media
from rewardlab.data.candidates import read_candidates
from rewardlab.data.files import leads_out
from rewardlab.data.images import check_image, read_image
from rewardlab.data.inputs import pair_of
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs
from rewardlab.data.recipes import SourceFolder
from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import MediaError
from tests.support.images import png


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set's folder with a picture in it, a picture beside the folder, and a link to that one."""
    (tmp_path / "set" / "deep").mkdir(parents=True)
    (tmp_path / "set" / "in.png").write_bytes(png())
    (tmp_path / "out.png").write_bytes(png())
    (tmp_path / "set" / "link.png").symlink_to(tmp_path / "out.png")
    return tmp_path / "set"


def write(folder: Path, **media: Any) -> Path:
    row = {"question": "What is it?", "responses": ["a", "b"], "preferred": 0} | media
    (folder / "p.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "p.jsonl"


@pytest.mark.parametrize("read", [read_pairs, PairTable, read_candidates])
@pytest.mark.parametrize(
    ("path", "is_read"),
    [
        ("in.png", True),
        ("deep/../in.png", True),
        ("./in.png", True),
        ("link.png", True),
        ("{parent}/out.png", True),
        ("../out.png", False),
        ("deep/../../out.png", False),
        ("../set/in.png", False),
    ],
)
def test_paths_of_images(read: Any, path: str, is_read: bool, folder: Path) -> None:
    """Relative paths stay below the folder; a whole path, and a link, are read where they point."""
    data = write(folder, images=[path.format(parent=folder.parent)])
    if read is read_candidates:
        row = json.loads(data.read_text())
        data.write_text(json.dumps({name: row[name] for name in ("question", "responses", "images")}))
    if is_read:
        assert len(next(iter(read(data))).images) == 1
        return
    with pytest.raises(MediaError, match=r"row 0.*, image 0: .*(out|in)\.png is outside .*/set, .* --images"):
        list(read(data))


def test_images_names_the_folder(folder: Path) -> None:
    """Paths that lie beside the file are read from the folder that holds all."""
    data = write(folder, images=["out.png", "set/in.png"])
    assert len(read_pairs(data, images=folder.parent)[0].images) == len(PairTable(data, images=folder.parent)[0].images) == 2


@pytest.mark.parametrize("read", [read_pairs, PairTable])
def test_videos_and_images_of_responses(read: Any, folder: Path) -> None:
    for media in ({"videos": ["../v.mp4"]}, {"responses": [[{"type": "image", "image": "../out.png"}], "b"]}):
        with pytest.raises(MediaError, match="is outside"):
            list(read(write(folder, **media)))


def test_sources_and_benchmarks(folder: Path) -> None:
    """The folder of a source and that of a benchmark's media hold theirs; a program's own row names what it likes."""
    with pytest.raises(MediaError, match="is outside"):
        SourceFolder(folder).image("../out.png", "image")
    with pytest.raises(MediaError, match=r"is outside .* MM-RLHF must be in one folder"):
        check_media(["in.png", "../out.png"], folder, "MM-RLHF")
    assert leads_out("..")
    assert not leads_out("..a.png")
    row = {"question": "q", "responses": ["a", "b"], "images": [folder / "deep" / ".." / ".." / "out.png"]}
    assert len(pair_of(row, 0, AllowedUrls()).images) == 1
    with pytest.raises(MediaError, match="cannot be read"):
        pair_of({**row, "images": [], "videos": ["../no_such_clip.mp4"]}, 0, AllowedUrls())


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A device has no end, and a pipe may never begin."""
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(MediaError, match="not a file"):
            read_image(path)
        with pytest.raises(MediaError, match="not a file"):
            check_image(path)
