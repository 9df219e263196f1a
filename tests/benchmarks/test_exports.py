"""A run in a benchmark's own form: its scorer gives a judge that is right all of it, whichever response is the better one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.registry import PACKAGED, find_benchmark
from rewardlab.benchmarks.vl_rewardbench.export import draws_of_votes
from rewardlab.benchmarks.vl_rewardbench.official import score_draws
from rewardlab.types import (
    BOTH_ORDERS,
    Completion,
    FinishReason,
    Judgment,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)
from rewardlab.verdicts.parse import format_verdict
from rewardlab.verdicts.votes import judgment

# What its scorer prints where all is right, and where all is wrong; groups, ids and media that each has a place for.
PRINTED = {
    "vl_rewardbench": ("Overall Accuracy: 100.00", "Overall Accuracy: 0.00"),
    "multimodal_rewardbench": ("acc all: 6 / 6 = 1.0", "acc all: 0 / 6 = 0.0"),
    "mm_rlhf": ("Overall Accuracy: 1.00", "Overall Accuracy: 0.00"),
    "mmrb2": ("Accuracy: 1.0000 (100.00%)", "Accuracy: 0.0000 (0.00%)"),
}
IDS = ("RLAIF-V-1", "mathverse-2", "wildvision-3", "RLHF-V-4", "mmmu-5", "svit-6")
GROUPS = {"mmrb2": "t2i", "multimodal_rewardbench": "knowledge"}


def rows_of(name: str, preferred: Sequence[int]) -> list[Row]:
    return [
        Row(
            n,
            PreferencePair(IDS[n], f"q{n}", ("x", "y"), better),
            GROUPS.get(name, "all"),
            str(n),
            {"medium": "image"},
            "mcq/1.png",
        )
        for n, better in enumerate(preferred)
    ]


def judgments_of(rows: Sequence[Row], *, right: bool) -> list[Judgment]:
    """One vote in each order, for the preferred response or the other."""
    judged = []
    for row in rows:
        votes = []
        for order in BOTH_ORDERS:
            assert row.pair.preferred is not None
            choice = choice_of(row.pair.preferred if right else 1 - row.pair.preferred, order)
            votes.append(
                Vote(order, Verdict(choice, VerdictStatus.OK), Completion(format_verdict(choice, "x"), FinishReason.STOP))
            )
        judged.append(judgment(row.pair.pair_id, votes))
    return judged


def test_every_export_is_here() -> None:
    assert {name for name in PACKAGED if find_benchmark(name).export} == set(PRINTED)


@pytest.mark.parametrize(
    ("name", "preferred"),
    [("mm_rlhf", (0,) * 6)]  # its file has the chosen answer first in every row
    + [(name, labels) for name in PRINTED if name != "mm_rlhf" for labels in ((0, 1, 1, 1, 0, 0), (0,) * 6, (1,) * 6)],
)
def test_a_judge_that_is_right_gets_all_of_it(name: str, preferred: tuple[int, ...]) -> None:
    """And one that is wrong nothing."""
    export = find_benchmark(name).export
    assert export is not None
    rows = rows_of(name, preferred)
    for right in (True, False):
        records = export.records(rows, judgments_of(rows, right=right), "think_answer", 0)
        assert PRINTED[name][not right] in "\n".join(export.lines(rows, records))


def test_the_ranking_of_a_draw_names_the_better_response() -> None:
    """By its label: [0, 1] where response 0 is preferred, [1, 0] where response 1 is."""
    rows = rows_of("vl_rewardbench", (0, 1))
    for right in (True, False):
        draws = draws_of_votes(rows, judgments_of(rows, right=right), "think_answer", 0)
        assert [draw["ranking"] for draw in draws] == [[0, 1], [1, 0]]
        (found,) = score_draws(draws, ks=(1,))
        assert (found.agree, found.reject) == ((2, 0) if right else (0, 2))


def draw(row_id: str, number: int | None) -> dict[str, Any]:
    text = "no idea" if number is None else f"Overall Judgment: Answer {number} is better."
    meta = {"filter_choice": text, "random_number": 0}
    return {"id": row_id, "query": "q", "response": ["good", "bad"], "ranking": [0, 1], "meta": meta}


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [((1, 2), (0, 0, 0)), ((1, None), (0, 0, 0)), ((2, None), (0, 0, 0)), ((1, 1, 2), (1, 0, 0)), ((None, 2, None), (0, 0, 1))],
)
def test_half_is_no_majority(numbers: tuple[int | None, ...], counts: tuple[int, int, int]) -> None:
    """Of the draws of an item more than half must say the same, or it is in no count but that of the items."""
    (found,) = score_draws([draw("svit-1", number) for number in numbers], ks=(3,))
    assert (found.agree, found.reject, found.doesnt_match) == counts
    assert found.num_items == 1
