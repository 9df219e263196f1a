"""The report of hardening: means over seeds, what was asked, families side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.hardening import ALL_PAIRS, ARMS, FIGURES, best_of_run, cell_of, markdown, of_blank_pictures


def arm(clean: float, share: float) -> dict[str, Any]:
    figures = dict.fromkeys(FIGURES, share)
    difference = {"difference": clean - 0.9, "interval": [clean - 0.91, clean - 0.89]}
    return {
        **dict.fromkeys(ALL_PAIRS, clean),
        "held_out": figures,
        "in_training": {**figures, "lost_by_captions": None, "right_unseen": None},
        "families": {"one_word": share, "hedge": share / 2},
        "difference": difference,
    }


def test_a_cell_is_a_mean_over_seeds() -> None:
    """Student's interval of two and more; none of one; a dash of nothing."""
    assert cell_of([0.5]) == "50.0"
    assert cell_of([0.4, 0.6]) == "50.0 [-77.1, 177.1]"
    assert cell_of([None]) == "–"


def test_judgments_without_a_verdict_count_against_a_guess() -> None:
    """One in ten without a verdict and half of the others right: 45 %, and 50 % of the verdicts. None without a verdict."""
    figures = of_blank_pictures({"accuracy": {"micro": 0.45}, "invalid_rate": 0.1})
    assert figures["blank"] == 0.45
    assert figures["blank_invalid"] == 0.1
    assert figures["blank_of_verdicts"] == pytest.approx(0.5)
    assert of_blank_pictures({"accuracy": {"micro": 0.0}, "invalid_rate": 1.0})["blank_of_verdicts"] is None


@pytest.mark.parametrize(("best", "name"), [(0, "start"), (54, "run/best"), (486, "run/final")])
def test_the_best_weights_of_a_run(tmp_path: Path, best: int, name: str) -> None:
    """Those it began with, those it kept, or its last."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"evaluation": {"best_step": best, "last_step": 486}}))
    assert best_of_run(tmp_path / "run", tmp_path / "start") == tmp_path / name


def test_the_tables() -> None:
    """Held-out families with what is asked, trained ones without; differences in points."""
    seed = {"before": arm(0.9, 0.5), "longer": arm(0.92, 0.4), "hardened": arm(0.88, 0.02)}
    text = markdown({"commit": "c", "settings": {}, "seeds": {"0": seed, "1": seed}})
    words, most = FIGURES["good_unnamed"]
    assert f"| {words} | 50.0 [50.0, 50.0] | 40.0 [40.0, 40.0] | 2.0 [2.0, 2.0] | ≤ {most} |" in text
    assert f"| {ALL_PAIRS['blank'][0]} | 90.0 [90.0, 90.0] | 92.0 [92.0, 92.0] | 88.0 [88.0, 88.0] | 50 |" in text
    assert "| 0 | +2.0 [+1.0, +3.0] | -2.0 [-3.0, -1.0] |" in text
    assert "| one word | 50.0 [50.0, 50.0] |" in text
    assert text.count("right without the picture") == 1
    assert all(title in text for title in ARMS.values())
