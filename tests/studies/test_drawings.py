"""The study of drawings and clips: its pairs, and a run too short to learn anything."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from eval.studies.drawings import ALL_WRONG, FLAWS, Settings, drawings_of_split, make_pair, run_drawings
from rewardlab.demo.pictures import is_held_out
from rewardlab.types import Choice, choice_of
from rewardlab.verdicts.parse import parse_verdict


@pytest.mark.parametrize("held_out", [False, True])
def test_no_scene_is_in_both_splits(held_out: bool) -> None:
    """Neither the one that is asked for nor one that is drawn; a drawing that does not fit differs from the request."""
    rng = random.Random(0)
    for num_wrong in (1, 7) * 100:
        scene, wrong = drawings_of_split(rng, held_out, num_wrong)
        assert len(wrong) == num_wrong
        assert {is_held_out(one) for one in (scene, *(drawn for _, drawn in wrong))} == {held_out}
        assert scene not in [drawn for _, drawn in wrong]
        assert {flaw for flaw, _ in wrong} <= {*FLAWS, *([] if held_out else [ALL_WRONG])}


@pytest.mark.parametrize("held_out", [False, True])
def test_a_judgment_names_the_answer_that_fits(held_out: bool) -> None:
    """In its order; the reading of that answer has no claim that is wrong, the other's has one."""
    rng = random.Random(1)
    for number in range(200):
        pair = make_pair(rng, number, held_out)
        choice = choice_of(pair.preferred or 0, pair.order)
        assert parse_verdict(pair.judgment, "think_answer").choice is choice
        first, second = pair.judgment.split("Response 2:")
        right, other = (first, second) if choice is Choice.FIRST else (second, first)
        assert ("wrong." in right, "wrong." in other) == (False, True)
        media = pair.response_videos if pair.category == "clip" else pair.response_images
        assert [len(of_answer) for of_answer in media] == [1, 1]


def test_a_short_run(tmp_path: Path) -> None:
    """Trains, serves, measures and reports; what has been measured is not measured again."""
    settings = Settings(num_train=64, num_test=40, num_groups=2, steps=2)
    report = run_drawings(tmp_path, 1, settings)
    text = report.read_text()
    assert all(
        f"| {row} | " in text for row in ("drawings", *(f"&emsp;{flaw}" for flaw in FLAWS), "clips", "best of 8 drawings")
    )
    before = (tmp_path / "seed0" / "figures.json").stat().st_mtime_ns
    assert run_drawings(tmp_path, 1, settings).read_text() == text
    assert (tmp_path / "seed0" / "figures.json").stat().st_mtime_ns == before
