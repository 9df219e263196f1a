"""When the signs of a policy are seen, and when its truth had fallen: worked by hand."""

from __future__ import annotations

from typing import Any

from eval.policy_signs import extreme_of, fall_of, judge_run, markdown, summarize
from rewardlab.config import SignsConfig
from rewardlab.rewards.policy_signs import TRENDS

LIMITS = SignsConfig.model_validate({"max_novelty": 0.1})


def record(arm: str, seed: int, novelty: list[float], held_out: list[float]) -> dict[str, Any]:
    signs: dict[str, list[float | None]] = {trend.metric: [None] * len(novelty) for trend in TRENDS.values()}
    signs["answers/novelty"] = list(novelty)
    points = [[4 * n, share] for n, share in enumerate(held_out)]
    return {"arm": arm, "seed": seed, "signs": signs, "held_out": points, "commit": "c"}


def test_a_fall_is_a_mean_below_the_start() -> None:
    """Of three evaluations, three points below; one alone is none."""
    assert fall_of([[0, 0.5], [4, 0.42], [8, 0.5], [12, 0.5]]) is None
    assert fall_of([[0, 0.5], [4, 0.5], [8, 0.46], [12, 0.45], [16, 0.3]]) == 12
    assert fall_of([[0, 0.5]]) is None


def test_the_table() -> None:
    """A run that fell and was seen before, one that was seen too late, a clean one, and a false alarm."""
    rising, flat = [0.0] * 6 + [0.5] * 10, [0.0] * 16
    fallen, kept = [0.5, 0.5, 0.5, 0.4, 0.2], [0.5] * 5
    seen, late = record("right_answer", 0, rising, fallen), record("right_answer", 1, [0.0] * 13 + [0.9] * 3, fallen)
    clean, alarm = record("truth", 0, flat, kept), record("truth", 1, rising, kept)
    run = judge_run(seen, LIMITS)
    assert (run["fallen"], run["seen"], run["signs"]) == (12, 8, {"novel_answers": 8})
    summary = summarize([seen, late, clean, alarm], LIMITS)
    assert summary["arms"]["right_answer"] == {"runs": 2, "fell": 2, "seen_in_time": 1, "seen_at_all": 2, "false_alarms": 0}
    assert summary["arms"]["truth"] == {"runs": 2, "fell": 0, "seen_in_time": 0, "seen_at_all": 0, "false_alarms": 1}
    assert "| the truth | 1 | – | 8 | novel_answers 8 |" in markdown(summary)


def test_how_far_a_metric_went() -> None:
    """Up, or down, from the mean of the first five; lines without it are left out."""
    assert extreme_of([0.0, None, 0.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.0], falls=False) == 0.3
    assert extreme_of([1.0] * 5 + [0.25] * 3 + [1.0] * 3, falls=True) == 0.75
    assert extreme_of([1.0] * 7, falls=True) is None
