"""A run in a benchmark's own form: its scorer gives a judge that is right all of it, whichever response is the better one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.mm_rlhf import rewards_of_votes
from rewardlab.benchmarks.mmrb2 import predictions_of_votes, task_lines
from rewardlab.benchmarks.multimodal_rewardbench import outputs_of_votes
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.vl_rewardbench import draws_of_votes, lines_of_export, score_draws
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Order,
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
    "genai_bench": ("Accuracy: 1.0", "Accuracy: 0.0"),
    "editreward_bench": ("Accuracy: 1.0000 (6/6)", "Accuracy: 0.0000 (0/6)"),
    "editscore_bench": ("Overall: 1.000 & 1.000", "Overall: 0.000 & 0.000"),
    "videogen_rewardbench": ("Without ties: 1.0", "Without ties: 0.0"),
    "omni_rewardbench": ("Acc: 1.0000 (6/6)", "Acc: 0.0000 (0/6)"),
}
FIRST_IS_BETTER = ("mm_rlhf", "editscore_bench")  # in every row
IDS = ("RLAIF-V-1", "mathverse-2", "wildvision-3", "RLHF-V-4", "mmmu-5", "svit-6")
GROUPS = {"mmrb2": "t2i", "multimodal_rewardbench": "knowledge", "editreward_bench": "2pair", "editscore_bench": "overall"}
SLICES = {"medium": "image", "comparison": "AvsB", "task": "compose"}


def rows_of(name: str, preferred: Sequence[int]) -> list[Row]:
    return [
        Row(
            n,
            PreferencePair(IDS[n], f"q{n}", ("x", "y"), better),
            GROUPS.get(name, "all"),
            str(n),
            SLICES,
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


@pytest.mark.parametrize(
    ("name", "preferred"),
    [(name, (0,) * 6) for name in FIRST_IS_BETTER]
    + [
        (name, labels) for name in PRINTED if name not in FIRST_IS_BETTER for labels in ((0, 1, 1, 1, 0, 0), (0,) * 6, (1,) * 6)
    ],
)
def test_a_judge_that_is_right_gets_all_of_it(name: str, preferred: tuple[int, ...]) -> None:
    """And one that is wrong nothing."""
    export = find_benchmark(name).export
    assert export is not None
    rows = rows_of(name, preferred)
    for right in (True, False):
        records = export.records(rows, judgments_of(rows, right=right), "think_answer", 0)
        assert PRINTED[name][not right] in "\n".join(export.lines(rows, records))


@pytest.mark.parametrize("name", PRINTED)
def test_a_row_without_a_judgment_is_not_left_out(name: str) -> None:
    export = find_benchmark(name).export
    assert export is not None
    rows = rows_of(name, (0, 0))
    judgments = judgments_of(rows, right=True)
    for short in ((rows[:1], judgments), (rows, judgments[:1])):
        with pytest.raises(ValueError, match="argument"):
            export.records(*short, "think_answer", 0)


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


def vote(order: Order, says: str, text: str = "") -> Vote:
    """For the response shown first (1) or second (2), or without a verdict (-)."""
    choice = {"1": Choice.FIRST, "2": Choice.SECOND, "-": None}[says]
    status = VerdictStatus.OK if choice else VerdictStatus.NO_VERDICT
    return Vote(order, Verdict(choice, status), Completion(text or f"{order}: {says}", FinishReason.STOP))


def votes_of(given: str, swapped: str) -> Judgment:
    return judgment("p", [vote(Order.SWAPPED, says) for says in swapped] + [vote(Order.GIVEN, says) for says in given])


def row_of(group: str, preferred: int = 0, number: int = 1) -> Row:
    pair = PreferencePair(f"p{number}", "q", ("x", "y"), preferred)
    return Row(number, pair, group, "prompt 9", {"medium": "video"}, "long/2")


@pytest.mark.parametrize(
    ("given", "swapped", "forward", "reverse"),
    [("1", "2", ["A"], ["B"]), ("22", "12", ["B"], ["A"]), ("-1", "21", [], ["B"]), ("1", "", ["A"], []), ("", "-", [], [])],
)
def test_predictions_are_the_first_vote_of_each_order(given: str, swapped: str, forward: list[str], reverse: list[str]) -> None:
    """A is the response shown first; a vote without a verdict is no judgement, and the next one does not stand in for it."""
    predictions = predictions_of_votes([row_of("t2i")], [votes_of(given, swapped)], "think_answer", 0)
    objects = [[{"judgement": letter, "evaluator": "rewardlab", "metadata": {}} for letter in of] for of in (forward, reverse)]
    assert predictions == {"p1": {"forward": objects[0], "reverse": objects[1]}}


def test_predictions_are_scored_task_by_task() -> None:
    """Against labels A and B; several tasks are summed up."""
    rows = [row_of("t2i"), row_of("t2i", 1, 2), row_of("edit", 1, 3)]
    predictions = predictions_of_votes(rows, [votes_of("1", "2"), votes_of("1", "1"), votes_of("2", "1")], "think_answer", 0)
    lines = task_lines(rows, predictions)
    assert [line for line in lines if line.startswith(("Task: ", "Total", "Accuracy:", "Overall"))] == [
        "Task: task1_image",
        "Total pairs: 2",
        "Accuracy: 0.7500 (75.00%)",
        "Task: task2_edit",
        "Total pairs: 1",
        "Accuracy: 1.0000 (100.00%)",
        "Overall                    83.33%",
    ]
    assert task_lines(rows[2:], predictions)[-2] == "Accuracy: 1.0000 (100.00%)"


@pytest.mark.parametrize(
    ("given", "verdict_format", "output"),
    [
        ("12", "think_answer", "[[A]]"),
        ("2", "think_answer", "[[B]]"),
        ("-1", "think_answer", ""),
        ("", "think_answer", ""),
        ("-1", "double_brackets", "given: -"),  # as it spoke
    ],
)
def test_outputs_are_the_first_vote_as_given(given: str, verdict_format: str, output: str) -> None:
    for preferred, label, group in ((0, "A", "safety/bias"), (1, "B", "safety")):
        (record,) = outputs_of_votes([row_of(group, preferred)], [votes_of(given, "12")], verdict_format, 0)
        assert record == {"ID": "p1", "Label": label, "output": output, "Meta": {"Category": "safety"}}


@pytest.mark.parametrize(
    ("given", "swapped", "rewards"),
    [("1", "1", [0.5, 0.5]), ("1112", "2", [0.875, 0.125]), ("-", "-", [0.0, 0.0]), ("2-", "", [0.0, 1.0])],
)
def test_shares_of_votes_stand_in_for_rewards(given: str, swapped: str, rewards: list[float]) -> None:
    """Of either order alike; the id is the prompt's, and the path stands under its medium."""
    records = rewards_of_votes([row_of("all")], [votes_of(given, swapped)], "think_answer", 0)
    assert records == [{"id": "prompt 9", "video": "long/2", "rewards": rewards}]


def test_draws_take_the_votes_in_their_sequence() -> None:
    """As many as both orders have, ten at most; each is the next one of the order that its number says."""
    judged = judgment("p", [vote(order, "1", f"{order} {n}") for n in range(14) for order in BOTH_ORDERS])
    row, few = row_of("all"), votes_of("121", "12")
    draws = draws_of_votes([row], [judged], "overall_judgment", 3)
    texts = [draw["meta"]["filter_choice"] for draw in draws]
    orders = [(Order.SWAPPED if draw["meta"]["random_number"] else Order.GIVEN).value for draw in draws]
    assert texts == [f"{order} {orders[:place].count(order)}" for place, order in enumerate(orders)]
    assert (len(draws), set(orders)) == (10, {"given", "swapped"})
    assert draws_of_votes([row], [judged], "overall_judgment", 3) == draws
    assert texts != [draw["meta"]["filter_choice"] for draw in draws_of_votes([row], [judged], "overall_judgment", 4)]
    assert len(draws_of_votes([row], [few], "think_answer", 0)) == 2
    assert draws_of_votes([row], [votes_of("1", "")], "think_answer", 0) == []
    (first, second) = draws_of_votes([row, row_of("all", 1, 2)], [votes_of("1", "1"), votes_of("-", "-")], "think_answer", 1)
    assert {name: first[name] for name in ("id", "query", "response", "ranking")} == {
        "id": "p1",
        "query": "q",
        "response": ["x", "y"],
        "ranking": [0, 1],
    }
    assert first["meta"]["filter_choice"] == "Overall Judgment: Answer 1 is better."
    assert (second["ranking"], second["meta"]["filter_choice"]) == ([1, 0], "")
    assert (second["meta"]["filter_number"], second["meta"]["flag_status"]) == (-1, "doesntMatch")


@pytest.mark.parametrize(("num", "ks"), [(1, [1]), (2, [1]), (3, [1, 3]), (6, [1, 3, 5]), (9, [1, 3, 5, 7, 9])])
def test_as_many_draws_are_scored_as_there_are(num: int, ks: list[int]) -> None:
    """Of each pair; the lines are those of its own scorer."""
    rows = [row_of("all", 0, number) for number in (1, 2)]
    records = draws_of_votes(rows, [votes_of("1" * num, "1" * num)] * 2, "think_answer", 0)
    lines = lines_of_export(rows, records)
    assert [line for line in lines if line.startswith("k=")] == [f"k={k} ----------------" for k in ks]
    assert lines == [line for at_k in score_draws(records, ks) for line in at_k.lines()]
    assert lines_of_export(rows, [])[0] == "k=1 ----------------"
