"""Every figure of a report has an interval: against plain resampling of prompts, and by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.scores import baseline_scores, control_scores, one_vote_scores, score_rows
from rewardlab.metrics.accuracy import Labeled, invalid_rate, length_bias, macro, position_bias, swap_consistency
from rewardlab.reporting.tables import with_interval
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair
from tests.support.labeled import labeled

Figure = Callable[[list[Labeled], list[int | None]], float | None]


def bench(num: int, seed: int) -> tuple[list[Row], list[Labeled], list[int | None]]:
    """Pairs of ``num`` prompts, one to three each, of a judge that leans to the first and to the longer response."""
    dice = random.Random(seed)
    rows, items, longer = list[Row](), list[Labeled](), list[int | None]()
    for prompt in range(num):
        for _ in range(dice.randint(1, 3)):
            length, preferred, group = dice.randint(0, 1), dice.randint(0, 1), dice.choice("ab")
            marks = ["".join(dice.choices("12-", (6 + 2 * (side == length), 4, 1), k=3)) for side in (0, 1)]
            responses = ("x" * (1 + (length == 0)), "x" * (1 + (length == 1)))
            pair = PreferencePair(f"p{len(rows)}", f"q{prompt}", responses, preferred)
            rows.append(Row(len(rows), pair, group, str(prompt), {}))
            items.append(labeled(*marks, preferred=preferred, group=group))
            longer.append(length)
    return rows, items, longer


FIGURES: dict[str, Figure] = {
    "macro_interval": lambda items, longer: macro(items),
    "swap_interval": lambda items, longer: swap_consistency(items),
    "position_interval": lambda items, longer: position_bias(items),
    "length_interval": lambda items, longer: length_bias(items, longer),
    "invalid_interval": lambda items, longer: invalid_rate(items),
}


@pytest.mark.nightly
def test_intervals_are_those_of_resampled_prompts() -> None:
    """Macro, swap consistency, leans and invalid rate, over 250 prompts drawn anew 400 times."""
    rows, items, longer = bench(250, 0)
    scores, dice = score_rows(rows, items, 3), np.random.default_rng(0)
    assert scores.num_clusters == 250
    members = [[n for n, row in enumerate(rows) if row.cluster == str(prompt)] for prompt in range(250)]
    drawn: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(400):
        places = [n for prompt in dice.integers(0, 250, 250) for n in members[prompt]]
        for name, figure in FIGURES.items():
            value = figure([items[n] for n in places], [longer[n] for n in places])
            assert value is not None
            drawn[name].append(value)
    for name, values in drawn.items():
        interval = getattr(scores, name)
        assert interval == pytest.approx(np.quantile(values, (0.025, 0.975)), abs=0.015), name


def test_a_figure_without_a_value_has_no_interval() -> None:
    rows = [Row(n, PreferencePair(f"p{n}", "q", ("a", "b"), 0), "all", str(n), {}) for n in range(8)]
    scores = score_rows(rows, [labeled("-")] * 8, 1)
    assert (scores.swap_interval, scores.position_interval, scores.length_interval) == (None, None, None)
    low, high = scores.invalid_interval or (0.0, 0.0)
    assert (low, high) == (pytest.approx(8 / (8 + 3.8416), abs=1e-4), 1.0)


def test_what_the_image_is_worth_by_hand() -> None:
    """Of eight pairs six are right with the image and two without: one vote against one vote, however many there are."""
    rows = [Row(n, PreferencePair(f"p{n}", "q", ("a", "b"), 0), "all", str(n), {}) for n in range(8)]
    seeing = [labeled("112", "221")] * 6 + [labeled("222", "111")] * 2
    blind = [labeled("1", "2")] * 2 + [labeled("2", "1")] * 6
    greedy = [labeled("1", "2")] * 8
    single = one_vote_scores(seeing, stopped=False)
    sampled = control_scores(rows, single, {"blank": blind})["blank"].difference
    assert sampled is not None
    assert sampled.difference == pytest.approx(6 * (2 / 3) / 8 - 2 / 8)  # one vote is right in 2 of 3 draws
    assert sampled.interval[0] < sampled.difference < sampled.interval[1]
    table = control_scores(rows, single, {"greedy": greedy, "blank": blind})
    assert table["greedy"].difference is None
    assert table["blank"].difference is not None
    assert table["blank"].difference.difference == pytest.approx(6 / 8)


def test_one_vote_of_stopped_votes_and_of_a_panel() -> None:
    """Votes that ended when settled lean to whoever led: of them, and of a panel's members, the first of each order."""
    item = labeled("211", "212")  # the first vote is wrong in the order given, and right in the other one
    assert one_vote_scores([item], stopped=True) == [0.5]
    assert one_vote_scores([item], stopped=False) == [pytest.approx((2 / 3 + 2 / 3) / 2)]
    votes = [replace(vote, member=f"m{n % 3}") for n, vote in enumerate(item.judgment.votes)]
    panel = replace(item, judgment=replace(item.judgment, votes=(*votes, *votes)))
    assert one_vote_scores([panel], stopped=True) == [1.0]  # two of three members are right in either order


def test_what_cannot_vary_has_no_interval() -> None:
    """A coin, and the first response in both orders, are right in half of the trials; in one order the first can vary."""
    rows = [Row(n, PreferencePair(str(n), "Q", ("ab", "a"), int(n % 3 == 0)), "g", str(n), {}) for n in range(9)]
    both = baseline_scores(rows, [BOTH_ORDERS] * 9, 0)
    given = baseline_scores(rows, [(Order.GIVEN,)] * 9, 0)
    assert {name for name, cell in both.items() if cell.interval is None} == {"random", "first"}
    assert {name for name, cell in given.items() if cell.interval is None} == {"random"}
    assert [both[name].micro for name in ("random", "first")] == [0.5, 0.5]
    assert (given["first"].micro, given["random"].micro) == (pytest.approx(2 / 3), 0.5)
    assert with_interval(both["first"].micro, both["first"].interval) == "50.0"
