"""Published rows of VL-RewardBench: whose groups they are, by arithmetic alone."""

from __future__ import annotations

import pytest

from rewardlab.benchmarks.arithmetic import fits, sentence
from rewardlab.benchmarks.vl_rewardbench import GROUPINGS
from rewardlab.errors import DataError

NAMES = ("general", "hallucination", "reasoning")


def row(*shares: float) -> dict[str, float]:
    return dict(zip(NAMES, shares, strict=True))


def test_r1_rewards_row_is_another_grouping() -> None:
    """309/484, 384/448, 206/318 are its three percentages, and 899/1,250 its overall; the official weights give 77.18."""
    groups = row(63.84, 85.71, 64.78)
    best, *others = fits(groups, 71.92, GROUPINGS)
    assert best.grouping.endswith("(R1-Reward)")
    assert best.counts == {"general": 309, "hallucination": 384, "reasoning": 206}
    assert round(best.overall, 2) == 71.92
    (official,) = [fit for fit in others if fit.grouping == "official"]
    assert round(official.overall, 2) == 77.18
    assert not official.adds_up
    said = sentence(groups, 71.92, GROUPINGS, "official")
    assert "309/484, 384/448, 206/318 = 899/1250" in said
    assert "not comparable with the official ones" in said


@pytest.mark.parametrize(
    ("shares", "overall", "computed"),
    [
        ((49.1, 67.6, 70.5), 65.8, 65.63),  # GPT-4o 2024-08-06
        ((50.8, 72.5, 64.2), 67.2, 67.21),  # Gemini-1.5-Pro 2024-09-24
        ((84.7, 62.5, 62.9), 65.8, 65.85),  # IXC-2.5-Reward
    ],
)
def test_rows_by_the_official_weights(shares: tuple[float, ...], overall: float, computed: float) -> None:
    """Within rounding, and what the official scorer's dropped items move (GPT-4o, 0.17)."""
    best = fits(row(*shares), overall, GROUPINGS)[0]
    assert best.grouping == "official"
    assert round(best.overall, 2) == computed
    assert "not comparable" not in sentence(row(*shares), overall, GROUPINGS, "official")


def test_unified_reward_think() -> None:
    """78.1 / 72.7 / 66.0 make 71.8 by the official counts, as a reader of its paper computed."""
    (official,) = [fit for fit in fits(row(78.1, 72.7, 66.0), 71.8, GROUPINGS) if fit.grouping == "official"]
    assert round(official.overall, 1) == 71.8


def test_similar_groups_accuse_nobody() -> None:
    """Near under every grouping, with one decimal: the official one is believed."""
    assert "official" in sentence(row(70.1, 70.5, 70.2), 70.3, GROUPINGS, "official")
    assert "not comparable" not in sentence(row(70.1, 70.5, 70.2), 70.3, GROUPINGS, "official")
    with pytest.raises(DataError, match="expected percentages"):
        fits(row(70.12, float("nan"), 70.2), 70.3, GROUPINGS)


def test_a_row_that_adds_up_under_nothing() -> None:
    assert "cannot both be right" in sentence(row(50.0, 50.0, 50.0), 71.0, GROUPINGS, "official")
    with pytest.raises(DataError, match="expected general, hallucination, reasoning"):
        fits({"general": 51.0}, 51.0, GROUPINGS)


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_fractions_are_no_percentages(scale: float) -> None:
    """At a hundredth of the size every tolerance is met; above 100 nothing is a percentage."""
    with pytest.raises(DataError, match="expected percentages"):
        fits(row(63.84 * scale, 85.71 * scale, 64.78 * scale), 71.92 * scale, GROUPINGS)


def test_a_macro_average_is_recognised() -> None:
    """The likeliest reason why an overall figure is not that of all items."""
    told = sentence(row(37.57, 40.54, 52.08), 43.39, GROUPINGS, "official")
    assert "plain mean of the groups" in told
