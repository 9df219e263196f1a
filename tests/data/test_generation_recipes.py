"""Recipes of people's preferences between generated images and videos, on rows of their sources' shape."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rewardlab.cli.data import find_recipe
from rewardlab.data.images import encode_png
from rewardlab.data.recipes import Rejected, convert_source
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, PreferencePair

VIDEO = b"____ftypvideo %d"  # begins as an MP4


def png(shade: int) -> bytes:
    return encode_png(Image.new("RGB", (30, 20), (shade, 40, 200)))


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """1.png to 4.png, of different shades, and files that stand for videos."""
    for number in range(1, 5):
        (tmp_path / f"{number}.png").write_bytes(png(number))
        (tmp_path / f"v{number}.mp4").write_bytes(VIDEO % number)
    return tmp_path


def converted(name: str, folder: Path) -> tuple[list[PreferencePair], Counter[str], list[str]]:
    found = list(convert_source(find_recipe(name), folder, images=folder))
    rejected = [one for one in found if isinstance(one, Rejected)]
    dropped = Counter(one.reason for one in rejected if one.kind == "dropped")
    return (
        [one for one in found if isinstance(one, PreferencePair)],
        dropped,
        [one.reason for one in rejected if one.kind == "bad"],
    )


def better(pair: PreferencePair) -> tuple[bytes, ...]:
    assert pair.preferred is not None
    return (*pair.response_images[pair.preferred], *pair.response_videos[pair.preferred])


def worse(pair: PreferencePair) -> tuple[bytes, ...]:
    assert pair.preferred is not None
    return (*pair.response_images[1 - pair.preferred], *pair.response_videos[1 - pair.preferred])


@pytest.mark.parametrize("column", ["file_path", "image_path"])
def test_hpdv2s_training_rows(media: Path, column: str) -> None:
    rows = [{"prompt": "a fox", column: ["1.png", "2.png"], "human_preference": [0, 1]}]
    rows += [{"prompt": "a cat", column: ["1.png", "9.png"], "human_preference": [1, 0]}, {"prompt": "a cat"}]
    (media / "train.json").write_text(json.dumps(rows))
    (pair,), dropped, bad = converted("hpdv2", media)
    assert (pair.question, pair.responses) == ("a fox", (IMAGE_MARK, IMAGE_MARK))
    assert (better(pair), worse(pair)) == ((png(2),), (png(1),))
    assert (dropped, len(bad)) == ({}, 2)
    assert "9.png" in bad[0]


def test_hpdv2s_test_rows(media: Path) -> None:
    """Every two of four images by their average rank; equal ranks are ties."""
    row = {"prompt": "a fox", "image_path": [f"{n}.png" for n in range(1, 5)], "rank": [1.5, 1.5, 4, 3], "raw_annotations": []}
    (media / "test.json").write_text(json.dumps([row]))
    pairs, dropped, bad = converted("hpdv2", media)
    wins = {(better(pair), worse(pair)) for pair in pairs}
    expected = [(1, 3), (1, 4), (2, 3), (2, 4), (4, 3)]
    assert wins == {((png(first),), (png(second),)) for first, second in expected}
    assert (len(pairs), dropped, bad) == (5, {"tie": 1}, [])
    assert len({pair.pair_id for pair in pairs}) == 5


def test_pairs_of_images_have_ids_and_places_by_their_images(media: Path) -> None:
    """Of one text with other images: other ids, the better one in either place; an id does not know which is better."""
    for number in range(5, 25):
        (media / f"{number}.png").write_bytes(png(number))
    rows = [{"prompt": "a fox", "image_path": [f"{n}.png", f"{n + 1}.png"], "human_preference": [1, 0]} for n in range(1, 24)]
    (media / "train.json").write_text(json.dumps(rows))
    pairs, _, _ = converted("hpdv2", media)
    assert len({pair.pair_id for pair in pairs}) == 23
    assert {pair.preferred for pair in pairs} == {0, 1}
    (media / "train.json").write_text(json.dumps([row | {"human_preference": [0, 1]} for row in rows]))
    assert [pair.pair_id for pair in converted("hpdv2", media)[0]] == [pair.pair_id for pair in pairs]


def test_hpdv3(media: Path) -> None:
    """The first image is the better one; where it is put is no clue."""
    row = {"prompt": "a fox", "path1": "1.png", "path2": "2.png", "model1": "m", "model2": "n", "confidence": 0.9}
    rows = [row | {"prompt": f"a fox {n}"} for n in range(20)] + [row | {"path2": "1.png"}]
    (media / "train.json").write_text(json.dumps(rows))
    pairs, dropped, bad = converted("hpdv3", media)
    assert {(better(pair), worse(pair)) for pair in pairs} == {((png(1),), (png(2),))}
    assert {pair.preferred for pair in pairs} == {0, 1}
    assert (len(pairs), dropped, bad) == (20, {"the answers are equal": 1}, [])


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_imagereward(media: Path) -> None:
    """A row for each image: those of one prompt belong together, wherever in the file they are."""
    rows = [
        {"image_path": f"{image}.png", "prompt_id": prompt, "prompt": f"a {prompt}", "classification": "Animals", "rank": rank}
        for image, prompt, rank in [(1, "fox", 2), (2, "cat", 1), (3, "fox", 1), (4, "fox", 2), (1, "owl", 1), (3, "cat", 5)]
    ]
    table(media / "metadata-train.parquet", rows)
    pairs, dropped, bad = converted("imagereward", media)
    wins = {(pair.question, better(pair), worse(pair)) for pair in pairs}
    expected = [("fox", 3, 1), ("fox", 3, 4), ("cat", 2, 3)]
    assert wins == {(f"a {prompt}", (png(first),), (png(second),)) for prompt, first, second in expected}
    assert (dropped, bad) == ({"tie": 1, "one image of its prompt": 1}, [])
    assert {pair.category for pair in pairs} == {"Animals"}


def test_pickapic_v2(media: Path) -> None:
    """Images within the file; a half each is a tie, and some rows have no label."""
    row = {"caption": "a fox", "jpg_0": png(1), "jpg_1": png(2), "label_0": 0.0, "label_1": 1.0, "has_label": True}
    rows = [row, row | {"label_0": 1.0, "label_1": 0.0}, row | {"label_0": 0.5, "label_1": 0.5}, row | {"has_label": False}]
    table(media / "train.parquet", rows)
    pairs, dropped, bad = converted("pickapic_v2", media)
    assert [(better(pair), worse(pair)) for pair in pairs] == [((png(2),), (png(1),)), ((png(1),), (png(2),))]
    assert (dropped, bad) == ({"tie": 1, "no label": 1}, [])


def test_videofeedback(media: Path) -> None:
    """Videos of one text, by the mean of five scores; a text with one video makes no pair."""
    names = ("visual quality", "temporal consistency", "dynamic degree", "text-to-video alignment", "factual consistency")
    scores = {"v1": (4, 3, 3, 3, 3), "v2": (1, 4, 4, 4, 4), "v3": (3, 3, 3, 3, 4), "v4": (1, 1, 1, 1, 1)}
    texts = {"v1": "a fox", "v2": "a fox", "v3": "a fox", "v4": "a cat"}
    rows = [
        {"id": video, "text prompt": texts[video], "video link": "x", **dict(zip(names, of, strict=True))}
        for video, of in scores.items()
    ]
    (media / "data.json").write_text(json.dumps(rows))
    pairs, dropped, bad = converted("videofeedback", media)
    assert {(better(pair), worse(pair)) for pair in pairs} == {((VIDEO % 2,), (VIDEO % 1,)), ((VIDEO % 2,), (VIDEO % 3,))}
    assert {pair.responses for pair in pairs} == {(VIDEO_MARK, VIDEO_MARK)}
    assert (dropped, bad) == ({"tie": 1, "one video of its text": 1}, [])
