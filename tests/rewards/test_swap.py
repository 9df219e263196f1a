"""The swap-consistency reward pays for the same winner in both orders, and a position bias nothing."""

from __future__ import annotations

import pytest

from rewardlab.rewards.judgment import swap_agreement

GIVEN, SWAPPED = ["given"] * 4, ["swapped"] * 4


def test_by_hand() -> None:
    """Given: 0 0 1 none; swapped: 0 1 1 1. A 0 finds one of four, a 1 three; the other way two of four and one."""
    got = swap_agreement(["p"] * 8, GIVEN + SWAPPED, [0, 0, 1, None, 0, 1, 1, 1])
    assert got == [0.25, 0.25, 0.75, 0.0, 0.5, 0.25, 0.25, 0.25]


def test_a_position_bias_earns_nothing() -> None:
    """Always the first position: response 0 in one order, response 1 in the other. Always the right response: everything."""
    assert swap_agreement(["p"] * 8, GIVEN + SWAPPED, [0] * 4 + [1] * 4) == [0.0] * 8
    assert swap_agreement(["p"] * 8, GIVEN + SWAPPED, [1] * 8) == [1.0] * 8


def test_pairs_do_not_mix_and_one_order_alone_earns_nothing() -> None:
    """The other pair's rollouts are not the other order's."""
    got = swap_agreement(["p", "q", "p", "r"], ["given", "swapped", "swapped", "given"], [0, 0, 0, 1])
    assert got == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("first", [0, 1])
def test_renaming_the_responses_changes_nothing(first: int) -> None:
    """Swapping the names 0 and 1 everywhere leaves every agreement as it was."""
    winners = [0, 1, None, 1, 1, 0, 1, 1]
    named = [None if w is None else (w if first == 0 else 1 - w) for w in winners]
    assert swap_agreement(["p"] * 8, GIVEN + SWAPPED, named) == swap_agreement(["p"] * 8, GIVEN + SWAPPED, winners)
