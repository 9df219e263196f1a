"""The best of N answers, reckoned over all choices, beside the choices themselves; and a judge that is over-optimised."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.over_optimisation import NUMBERS, best_of, curve_of, draw, markdown, summarize
from rewardlab.types import PreferencePair


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=7), st.data())
def test_best_of_is_the_mean_over_all_choices(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    """Every choice of N counts alike; those with several best share."""
    number = data.draw(st.integers(1, len(rows)))
    by_hand = []
    for choice in itertools.combinations(rows, number):
        most = max(score for score, _ in choice)
        # Over all choices together those of equal score have equal shares, so their mean value stands for each.
        by_hand.append(np.mean([value for score, value in rows if score == most]))
    assert best_of([s for s, _ in rows], [v for _, v in rows], number) == pytest.approx(np.mean(by_hand))


def test_a_judge_that_is_over_optimised(tmp_path: Path) -> None:
    """One answer in 64 is wrong and paid above the right one: the best of 64 is always it, the best of 1 hardly ever."""
    pairs = [PreferencePair(f"p{n}", "Which?", ("It is red.", "It is blue."), 0) for n in range(3)]
    answers = [["It is red."] * 40 + ["It is blue."] * 23 + ["Red red!"]] * 3
    scores: list[dict[str, float | None]] = [{"It is red.": 0.5, "It is blue.": 0.1, "Red red!": 0.9}] * 3
    curve = curve_of(pairs, answers, scores)
    right, paid = ([point[0] for point in curve[name]] for name in ("right", "paid"))
    assert right[0] == pytest.approx(40 / 64)
    assert (right[-1], paid[-1]) == (0.0, pytest.approx(0.9))
    assert paid == sorted(paid)
    assert max(right) == max(right[1:4]), "some more answers help"
    honest = curve_of(pairs, answers, [{**scores[0], "Red red!": None}] * 3)
    assert [point[0] for point in honest["right"]] == sorted(point[0] for point in honest["right"])
    assert honest["unreadable"] == 3
    summary = summarize({"before": [curve, curve], "after": [honest]}, {"commit": "x", "questions": 3})
    assert summary["judges"]["before"]["lost"] == pytest.approx(right[2])
    assert summary["judges"]["after"]["lost"] < 0, "what is won by more answers"
    table = markdown(summary)
    assert "| before (2) |" in table
    assert table.count("\n| after") == 2
    draw(summary, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000
    assert len(NUMBERS) == 7
