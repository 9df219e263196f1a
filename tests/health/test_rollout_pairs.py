"""The pairs that a run's page shows beside its rollouts: of the run's data or not at all, as small pictures, not too many."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rewardlab.data.images import decode_image, thumbnail
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import DataError
from rewardlab.health.run_page import (
    MOST_CHARACTERS,
    MOST_PER_STEP,
    MOST_PICTURES,
    MOST_STEPS,
    PICTURE_PX,
    rollouts_by_step,
    shorten,
    write_run_page,
)
from rewardlab.types import PreferencePair


def picture(width: int = 64, height: int = 48, kind: str = "PNG", seed: int = 0) -> bytes:
    """Noise: no picture of this size is larger."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind)
    return buffer.getvalue()


def smooth_jpeg(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture(30, 20))).resize((width, height)).save(buffer, format="JPEG")
    return buffer.getvalue()


def pair(number: int, *images: bytes) -> PreferencePair:
    return PreferencePair(
        f"p{number}", f"Question <b>{number}</b>?", ("left", "right"), 1, images=images or (picture(seed=number),)
    )


def make_run(folder: Path, pairs: Sequence[PreferencePair], samples: Sequence[dict[str, Any]], **changes: Any) -> Path:
    """A folder as training leaves it behind, and its data beside it."""
    write_parquet(pairs, folder / "pairs.parquet")
    table, run = PairTable(folder / "pairs.parquet"), folder / "run"
    run.mkdir()
    record = {
        "config": {"model": "m", "frames": 8},
        "commit": "c" * 40,
        "versions": {},
        "data": f"{table.fingerprint} held out",
    }
    record |= {"data_files": {"path": str(table.path), "images": None}}
    (run / "run.json").write_text(json.dumps(record | changes))
    (run / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    return run


def rollout(step: int, number: int) -> dict[str, Any]:
    return {"step": step, "pair_id": f"p{number}", "order": "swapped", "text": "so", "reward": 1.0, "correct": True}


def pictures_of(page: str) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r'"data:image/\w+;base64,([^"]+)"', page)]


def test_a_rollout_stands_under_its_question_and_image(tmp_path: Path) -> None:
    """Question and image once for all rollouts of a pair; texts are text; a picture of megapixels comes small."""
    large = smooth_jpeg(3000, 2000)
    run = make_run(tmp_path, [pair(0, large), pair(1)], [rollout(1, 0), rollout(1, 0), rollout(1, 1)])
    page = write_run_page(run).read_text()
    assert page.count("Question &lt;b&gt;0&lt;/b&gt;?") == 1
    assert page.count('<div class="rollout right">') == 3
    assert "B first · reward 1.0" in page
    assert [image.size for image in pictures_of(page)] == [(320, 213), (64, 48)]


def test_data_that_are_others_show_nothing(tmp_path: Path) -> None:
    """A picture beside a rollout that is about another one would mislead. A sentence on the page, or an error if they were
    named."""
    run = make_run(tmp_path, [pair(0), pair(1)], [rollout(1, 0)])
    write_parquet([replace(pair(0), question="Another?"), pair(1)], tmp_path / "pairs.parquet")
    page = write_run_page(run).read_text()
    assert "not the pairs that the run was trained on, or they have changed since" in page
    assert f"`rewardlab show {run} --data FILE` adds them" in page
    assert "Another?" not in page
    with pytest.raises(DataError, match="not the pairs that the run was trained on"):
        write_run_page(run, data=tmp_path / "pairs.parquet")
    (tmp_path / "pairs.parquet").unlink()
    assert "Questions and images are not shown: " in write_run_page(run).read_text()


def test_data_may_have_moved(tmp_path: Path) -> None:
    run = make_run(tmp_path, [pair(0)], [rollout(1, 0)])
    (tmp_path / "pairs.parquet").rename(tmp_path / "moved.parquet")
    assert not pictures_of(write_run_page(run).read_text())
    assert len(pictures_of(write_run_page(run, data=tmp_path / "moved.parquet").read_text())) == 1


def test_a_run_of_pairs_in_memory_says_that_there_is_no_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, [pair(0)], [rollout(1, 0)], data_files=None)
    assert "does not record the file that it was trained on" in write_run_page(run).read_text()
    (run / "samples.jsonl").unlink()
    assert "not shown" not in write_run_page(run).read_text()


def test_pairs_of_one_id_are_not_guessed(tmp_path: Path) -> None:
    run = make_run(tmp_path, [pair(0), replace(pair(1), pair_id="p0"), pair(2)], [rollout(1, 0), rollout(1, 2), rollout(1, 7)])
    page = write_run_page(run).read_text()
    assert len(pictures_of(page)) == 1
    assert "2 pairs are not shown: their pair_id is not in" in page


def test_a_picture_that_cannot_be_read_hides_its_own_pair_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, [pair(0, b"no picture"), pair(1)], [rollout(1, 0), rollout(1, 1)])
    page = write_run_page(run).read_text()
    assert "1 pairs are not shown: their media cannot be read." in page
    assert "Question &lt;b&gt;1&lt;/b&gt;?" in page


@pytest.mark.nightly
def test_pictures_are_bounded(tmp_path: Path) -> None:
    """Forty steps of eight pairs of six images, all noise: pairs of the newest steps have pictures, at most four each, and each
    picture is there once. What is left out is counted, and the page is no larger than so many pictures of noise."""
    pairs = [pair(number, *(picture(321, 321, "BMP", 6 * number + n) for n in range(6))) for number in range(60)]
    samples = [rollout(step, (8 * step + n) % 60) for step in range(100) for n in range(10)]
    page = write_run_page(make_run(tmp_path, pairs, samples)).read_text()
    shown = pictures_of(page)
    assert len(shown) == MOST_PICTURES
    assert {image.format for image in shown} == {"JPEG"}
    assert max(image.width for image in shown) == PICTURE_PX
    assert page.count("<summary>Step ") == MOST_STEPS
    assert "8 of 10 rollouts" in page
    assert "2 more images are not on this page." in page
    assert "6 more images are not on this page." in page
    assert len(page) < 15_000_000


def test_a_small_picture_of_many_bytes_comes_as_a_jpeg() -> None:
    noise = picture(300, 300, "PNG")
    assert len(noise) > 250_000
    assert len(thumbnail(noise, 320)) < 0.5 * len(noise)
    small = picture(40, 40)
    assert thumbnail(small, 320) == small


def test_a_large_jpeg_is_not_decoded_in_full() -> None:
    """Several times as fast, and the same picture."""
    data = smooth_jpeg(4000, 3000)
    times = []
    for enough in (None, 640):
        start = time.process_time()
        small = decode_image(data, enough_px=enough)
        times.append(time.process_time() - start)
    assert (small.width, small.height) == (1000, 750)
    assert times[1] < 0.7 * times[0]


def test_rollouts_that_are_shown() -> None:
    """The first and the last step, forty in all; of a step the first rollouts, by their pair; a long text is cut."""
    steps = rollouts_by_step([{**rollout(step, n), "reward": None if n else 3.0} for step in range(1000) for n in (0, 1, 0)])
    assert (len(steps), steps[0].step, steps[-1].step) == (MOST_STEPS, 0, 999)
    assert {name: len(rows) for name, rows in steps[0].by_pair.items()} == {"p0": 2, "p1": 1}
    assert steps[0].reward == 3.0
    [step] = rollouts_by_step([{"step": 1, "text": "x"}] * 20)
    assert (step.count, len(step.by_pair[""]), step.reward) == (20, MOST_PER_STEP, None)
    assert shorten("x" * (MOST_CHARACTERS + 1_500)) == "x" * MOST_CHARACTERS + " … (1,500 more characters)"
