"""Other rules than the watchdog's: by hand, against the watchdog itself, and on runs whose signs are known."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from eval import sign_rules
from eval.policy_signs import extreme_of
from eval.sign_rules import RULES, changes_of, cumulative_sum, fit, mean_of_last, seen_at, single_fall, tried, weighted_mean

WATCHDOG = next(iter(RULES.values()))


def trial(arm: str, seed: int, values: list[float | None], held_out: list[list[float]]) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, "signs": {"answers/new_winners": values}, "held_out": held_out}


def test_rules_by_hand() -> None:
    assert mean_of_last([1.0, 3.0, 5.0], 2) == [-math.inf, 2.0, 4.0]
    assert mean_of_last([1.0], 2) == [-math.inf]
    assert cumulative_sum([1.0, -5.0, 2.0, 2.0], slack=0.5) == [0.5, 0.0, 1.5, 3.0]
    assert weighted_mean([1.0, 1.0, 0.0], weight=0.5) == [0.5, 0.75, 0.375]


def test_changes_are_from_the_first_five_known_lines() -> None:
    """A line that is not known has no place; a fall is a change where that is the sign."""
    run = trial("truth", 0, [1.0, None, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0], [])
    assert changes_of(run, "new_winners") == ([7, 8], [3.0, 5.0])
    assert changes_of(run, "canaries") == ([], [])
    falls = {"signs": {"judge/canaries": [1.0] * 5 + [0.75]}}
    assert changes_of(falls, "canaries") == ([6], [0.25])


def test_the_first_rule_is_the_watchdogs() -> None:
    """Its farthest value is that by which the watchdog's own limits are fitted."""
    values: list[float | None] = [0.1, 0.2, 0.1, 0.3, 0.2, 0.5, 0.1, 0.9, 0.8, 0.2]
    far = max(WATCHDOG(changes_of(trial("truth", 0, values, []), "new_winners")[1]))
    assert far == pytest.approx(extreme_of(values, falls=False))


def test_what_is_counted() -> None:
    """Limits of one half's clean runs, on the other half: a rise before the fall, one after it, and a clean run that rises
    farther than those of the other half."""
    level, fall = [0.0] * 5, [[0, 0.5], [4, 0.5], [8, 0.4], [12, 0.3], [16, 0.3]]
    assert single_fall(fall) == 8
    runs = [
        trial("right_answer", 0, [*level, 1.0, 1.0], fall),  # seen at 6, before both
        trial("right_answer", 1, [*level, *[0.0] * 5, 1.0], fall),  # at 11: before the mean of three falls, at 12
        trial("truth", 0, [*level, 0.1], [[0, 0.5]]),
        trial("truth", 1, [*level, 0.3], [[0, 0.5]]),  # beyond what the other half shows
    ]
    each = RULES["each line"]
    assert fit(runs[2:3], each, ["new_winners", "canaries"]) == {"new_winners": pytest.approx(0.105)}
    assert seen_at(runs[0], each, {"new_winners": 0.105}) == 6
    assert seen_at(runs[2], each, {"new_winners": 0.105}) is None
    assert tried(runs, each, ["new_winners"]) == {"in_time": 2, "before_single": 1, "false": 1}


def test_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It refuses a study without deceived runs, and writes a row for each rule and set of signs."""
    fall = [[0, 0.5], [4, 0.4], [8, 0.4], [12, 0.3]]
    trials = [
        trial(arm, seed, [0.0] * 5 + [rise], fall) for arm, rise in (("right_answer", 1.0), ("truth", 0.1)) for seed in (0, 1)
    ]
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"commits": ["c"], "trials": trials}))
    monkeypatch.setattr("sys.argv", ["sign_rules", "--study", str(study), "--out", str(tmp_path)])
    sign_rules.main()
    rows = json.loads((tmp_path / "sign_rules.json").read_text())["rows"]
    assert len(rows) == len(RULES) * 4
    assert "| `new_winners` | each line | 2 of 2 | 0 of 2 | 0 of 2 |" in (tmp_path / "sign_rules.md").read_text()
