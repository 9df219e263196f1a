"""The pairs of the how-to on tags: their pictures show what their labels say, and no text says it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eval.tags_example import NUM_CLIPS, NUM_FRAMES, write_rows
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.pictures import COLORS
from rewardlab.training.run.folder import FINAL
from rewardlab.types import IMAGE_MARK, PreferencePair
from tests.support.shell import run_main


def shows(image: bytes, color: str) -> bool:
    """Whether a shape's worth of pixels is within the paint's spread of a colour."""
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=int)
    return int((np.abs(pixels - COLORS[color]).max(axis=2) <= 18).sum()) > 40


def color_of(title: str) -> str:
    return next(color for color in COLORS if color in title)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[PreferencePair]:
    return list(read_pairs(write_rows(tmp_path_factory.mktemp("tags"), "train", 120, seed=3)))


@pytest.mark.slow
def test_a_right_title_is_of_all_clips_and_a_wrong_one_is_not(pairs: list[PreferencePair]) -> None:
    titles = [pair for pair in pairs if pair.category == "title"]
    assert len(titles) > 30
    for pair in titles:
        assert len(pair.images) == pair.question.count(IMAGE_MARK) == NUM_CLIPS * NUM_FRAMES
        assert pair.preferred is not None
        right, wrong = (color_of(pair.responses[n]) for n in (pair.preferred, 1 - pair.preferred))
        assert all(shows(image, right) for image in pair.images)
        assert sum(shows(image, wrong) for image in pair.images) == (NUM_CLIPS - 1) * NUM_FRAMES


def test_a_right_item_shows_the_color_of_the_query(pairs: list[PreferencePair]) -> None:
    items = [pair for pair in pairs if pair.category == "item"]
    assert len(items) > 30
    for pair in items:
        assert pair.preferred is not None
        [image] = pair.response_images[pair.preferred]
        assert shows(image, color_of(pair.question))


def test_texts_say_nothing(pairs: list[PreferencePair]) -> None:
    """Neither place nor length of the right response, nor its colour."""
    for says in _guesses():
        guesses = [says(pair) == pair.preferred for pair in pairs if pair.category == "title"]
        assert abs(sum(guesses) / len(guesses) - 0.5) < 0.2


def _guesses() -> list[Callable[[PreferencePair], int]]:
    def longer(pair: PreferencePair) -> int:
        return int(len(pair.responses[1]) > len(pair.responses[0]))

    return [lambda pair: 0, longer, lambda pair: int(pair.responses[1] < pair.responses[0])]


@pytest.mark.nightly
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """As printed, for two steps: the bundled judge learns from rows with six pictures, and its benchmark reads them."""
    from rewardlab.cli import main

    write_rows(tmp_path, "train", 64, seed=0)
    write_rows(tmp_path, "test", 4, seed=0)
    taught = run_main(
        main, "sft", "--data", tmp_path / "train.jsonl", "--model", "demo", "--config", "tiny/sft", "max_steps=2",
        "batch_size=8", "micro_batch_size=8", "save_steps=2", "warmup_steps=1", "--out", tmp_path / "judge",
    )  # fmt: skip
    assert taught.returncode == 0, taught.stderr
    scored = run_main(
        main, "bench", "run", "pairs", "--data", tmp_path / "test.jsonl", "--judge", f"hf:{tmp_path / 'judge' / FINAL}",
        "--votes", 1, "--controls", "blank", "--out", tmp_path / "bench",
    )  # fmt: skip
    assert "text-only (blank image)" in scored.stdout, scored.stderr
