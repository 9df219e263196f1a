"""The report of the loop study: what is handed on, the least of it, and the policy beside it without a loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.hardening_loop import Settings, draw, markdown, summarize, write_questions
from eval.scripts import keep_settings
from eval.studies.policy_trials import MANY_WORDED
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.pairs import make_pairs
from rewardlab.errors import ConfigError
from rewardlab.types import PreferencePair


def row(number: int, next_test: float, *tested: float) -> dict[str, Any]:
    names = ["checkpoint-5", "final"]
    return {
        "number": number,
        "next_test": next_test,
        "test": dict(zip(names, tested, strict=True)),
        "negatives": 7,
        "accuracy_before": 0.93,
        "accuracy_after": None if number else 0.92,
        "accepted": None if number else True,
    }


def test_the_report(tmp_path: Path) -> None:
    """The least counts the start in every way; a checkpoint that is not gone on with is told beside it."""
    seeds = {
        str(seed): {
            "loop": [row(0, 0.55, 0.55, 0.3), row(1, 0.6, 0.58, 0.6)],
            "several": [0.5, 0.56 + 0.02 * seed],
            "alone": [0.4, 0.3 + 0.1 * seed],
        }
        for seed in range(2)
    }
    facts = {"commit": "c", "settings": {"rounds": 2, "steps": 20}, "num_judges": 3, "num_test": 500, "start": 0.54}
    summary = summarize(seeds, facts)
    loop, several, alone = (summary["curves"][name] for name in ("loop", "several", "alone"))
    assert (loop["seeds"][0], loop["least"][0], loop["last"][0]) == ([0.54, 0.55, 0.6], 0.54, 0.6)
    assert several["mean"] == pytest.approx([0.54, 0.5, 0.57])
    assert (several["least"], alone["least"][0], alone["last"][1]) == ([0.5, 0.5], 0.3, 0.4)
    assert summary["least_of_any_checkpoint"] == [0.3, 0.3]
    text = markdown(summary)
    assert "| at the end | 60.0 [60.0, 60.0] | 57.0 [44.3, 69.7] | 35.0 [-28.5, 98.5] |" in text
    assert "| least of the mean curve | 54.0 | 50.0 | 35.0 |" in text
    gains = "| the loop's less this one's at the end, seed by seed, points | | 3.0 [-9.7, 15.7] | 25.0 [-38.5, 88.5] |"
    assert gains in text
    assert "| least of any checkpoint, those that are not gone on with too | 30.0 [30.0, 30.0] | | |" in text
    assert "| 0 | 1 | 60.0 | 58.0, 60.0 | 7 | 93.0 | – | None |" in text
    one_judge = summarize({"0": {"loop": [row(0, 0.6, 0.6, 0.6)], "alone": [0.7]}}, facts)["curves"]
    assert list(one_judge) == ["loop", "alone"]
    assert one_judge["loop"]["least"] == one_judge["alone"]["least"] == [0.54]
    draw(summary, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_other_settings_are_refused(tmp_path: Path) -> None:
    """What is kept of one study is none of another's."""
    for _ in range(2):
        keep_settings(tmp_path / "a", {"num_test": 500})
    with pytest.raises(ConfigError, match="other settings"):
        keep_settings(tmp_path / "a", {"num_test": 100})
    (tmp_path / "b" / "loop").mkdir(parents=True)
    with pytest.raises(ConfigError, match="other settings"):
        keep_settings(tmp_path / "b", {"num_test": 500})


def test_the_questions(tmp_path: Path) -> None:
    """None of many right answers; none both in the gate and in what is examined."""
    made = make_pairs(40, seed=7, held_out=True)[0]
    for name, pairs in (("train", [PreferencePair(f"t{n}", "Which?", ("a", "b"), 0) for n in range(3)]), ("test", made[:10])):
        write_parquet([*pairs, PreferencePair(f"{name}x", MANY_WORDED, ("a", "b"), 0)], tmp_path / f"{name}.parquet")
    paths = write_questions(tmp_path, tmp_path / "out", Settings(num_gate=40, seed=7))
    asked = {name: read_pairs(path) for name, path in paths.items()}
    assert [pair.pair_id for pair in asked["train"]] == ["t0", "t1", "t2"]
    one_answer = [pair.pair_id for pair in made if pair.question != MANY_WORDED]
    assert [pair.pair_id for pair in [*asked["test"], *asked["gate"]]] == one_answer
