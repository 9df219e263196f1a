"""The watchdog over the method study's runs: who is named, and whether that is before accuracy has fallen."""

from __future__ import annotations

from typing import Any

import pytest

from eval.watchdog_critics import fall_of, markdown, summarize


def record(arm: str, explained: list[float], bias: float, right: list[float]) -> dict[str, Any]:
    series = {"tokens": [1000] * len(right), "right": right, "explained": explained, "position_bias": [bias] * len(right)}
    return {
        "start": None,
        "arm": arm,
        "seed": 0,
        "commit": "abc",
        "config": {"advantage": "gae", "gae_lambda": 0.95},
        "series": series,
    }


def test_a_starved_critic_is_named_before_the_fall() -> None:
    healthy = record("vc_ppo", [0.3] * 8, 0.1, [0.60 + 0.01 * n for n in range(8)])
    starved = record("starved_vc_ppo", [0.0] * 8, 1.4, [0.60 - 0.02 * n for n in range(8)])
    summary = summarize([healthy, starved], {"accuracy": 0.6})
    ours, theirs = summary["arms"]["vc_ppo"], summary["arms"]["starved_vc_ppo"]
    assert (ours["starved"], ours["named"], ours["named_at"], ours["fallen_at"]) == (False, 0, [None], [None])
    assert (theirs["starved"], theirs["named"], theirs["in_time"]) == (True, 1, 1)
    assert (theirs["named_at"], theirs["fallen_at"]) == (
        [2],
        [5],
    )  # the bias of two batches; 0.56, 0.54, 0.52 are 6 points below
    assert summary["runs"][1]["signs"] == ["advantage_by_position"]
    assert "| VC-PPO, critic of 6 steps | yes | 1 | 1 | 1 | 2 | 5 | 60.0 →" in markdown(summary)


@pytest.mark.parametrize(
    ("accuracies", "fallen"), [([0.6, 0.5], None), ([0.5, 0.5, 0.5], 3), ([0.6, 0.6, 0.6, 0.48, 0.48], 5), ([0.6] * 9, None)]
)
def test_a_fall_by_hand(accuracies: list[float], fallen: int | None) -> None:
    """Five points below a start of 0.6, in the mean of three."""
    assert fall_of(accuracies, 0.6) == fallen
