"""The other official scorers at their edges: nothing to score, words that are no verdict, and every line that they print."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.mm_rlhf import CATEGORIES, path_category, score_rewards
from rewardlab.benchmarks.mmrb2 import TaskScore, lines_of_predictions, overall, score_task, summary_lines
from rewardlab.benchmarks.multimodal_rewardbench import output_lines, score_outputs, sub_category
from rewardlab.benchmarks.rewardbench2.official import (
    Ties,
    rating_credit,
    subset_lines,
    text_lines,
    ties,
)
from rewardlab.errors import ConfigError


def judged(forward: Any, reverse: Any) -> dict[str, list[dict[str, Any]]]:
    return {"forward": [{"judgement": forward}], "reverse": [{"judgement": reverse}]}


def test_mmrb2_prints_every_line_of_a_task() -> None:
    rule = "=" * 50
    lines = ["", rule, "Task: t", rule, "Total pairs: 7", "Evaluated: 5", "Missing: 2", "Accuracy: 0.6667 (66.67%)", rule]
    assert TaskScore("t", 7, 2, 6, 9).lines() == lines


def test_mmrb2_prints_every_line_of_a_summary() -> None:
    double, single = "=" * 50, "-" * 50
    assert summary_lines([TaskScore("task1_image", 7, 2, 6, 9), TaskScore("task2_edit", 1, 0, 1, 1)]) == [
        "",
        double,
        "SUMMARY",
        double,
        "Task                      Accuracy     Missing",
        single,
        "task1_image                66.67%      2",
        "task2_edit                100.00%      0",
        single,
        "Overall                    70.00%",
        double,
    ]


def test_mmrb2_of_nothing_is_0() -> None:
    none = score_task([{"id": "a", "chosen": "A"}], {}, "t")
    assert none == TaskScore("t", 1, 1, 0, 0)
    assert (none.accuracy, overall([none]), overall([])) == (0.0, 0.0, 0.0)


def test_mmrb2_passes_over_pairs_without_a_prediction() -> None:
    """Every one of them is missing, and none hides what comes after it."""
    pairs = [{"id": str(n), "chosen": "B"} for n in range(5)]
    predictions = {"1": judged("B", "A"), "3": judged("A", "B")}
    assert score_task(pairs, predictions, "t") == TaskScore("t", 5, 3, 2, 4)


@pytest.mark.parametrize(
    ("orders", "correct", "trials"),
    [
        (judged("C", "C"), 2, 2),  # a word that is no letter stays as it is when the order is turned
        (judged("A", "B"), 0, 2),
        (judged("", None), 0, 0),
        ({"forward": [{}], "reverse": []}, 0, 0),
        ({"reverse": [{"judgement": "C"}]}, 1, 1),
    ],
)
def test_mmrb2_takes_a_judgement_as_it_stands(orders: dict[str, Any], correct: int, trials: int) -> None:
    assert score_task([{"id": "a", "chosen": "C"}], {"a": orders}, "t") == TaskScore("t", 1, 0, correct, trials)


def test_mmrb2_is_not_scored_without_its_labels() -> None:
    with pytest.raises(ConfigError, match=r"^mmrb2 is scored against its labels: name the task's benchmark file with --data$"):
        lines_of_predictions({}, None)


def test_mmrb2_of_a_file(tmp_path: Path) -> None:
    """The labels are the file's, the task is told from its name, and nothing is summed up."""
    (tmp_path / "edit.json").write_text('{"pairs": [{"id": "a", "chosen": "A"}, {"id": "b", "chosen": "B"}]}')
    lines = lines_of_predictions({"a": judged("A", "B")}, tmp_path / "edit.json")
    assert lines == TaskScore("task2_edit", 2, 1, 2, 2).lines()


def test_mm_rlhf_rows_without_an_id_are_one_item() -> None:
    """That of the empty id: one of them that is wrong costs it all."""
    rows = [{"id": "", "image": "mcq/1", "rewards": [1, 0]}, {"image": "mcq/2", "rewards": [0, 1]}]
    assert score_rewards(rows)["mcq"] == {"accuracy": 0.5, "acc_plus": 0.0, "total": 2}
    assert score_rewards(rows)["overall"] == {"accuracy": 0.5, "acc_plus": 0.0, "total": 2}
    apart = [rows[0], {**rows[1], "id": "b"}]
    assert score_rewards(apart)["overall"] == {"accuracy": 0.5, "acc_plus": 0.5, "total": 2}


@pytest.mark.parametrize("key", ["image", "video"])
@pytest.mark.parametrize("word", CATEGORIES)
def test_mm_rlhf_goes_by_the_first_word_of_a_path(word: str, key: str) -> None:
    row = {"id": 1, key: f"data/{word}/video-1", "rewards": [2, 1]}
    assert path_category(row) == word
    table = score_rewards([row])
    assert table[word]["total"] == 1
    assert [name for name in CATEGORIES if table[name]["accuracy"]] == [word]
    assert path_category({"rewards": [2, 1]}) is None


@pytest.mark.parametrize(
    ("category", "row_id", "name"),
    [
        ("safety", "PAIRS-1", "safety/bias"),
        ("safety", "pairs-1", "safety/bias"),
        ("safety", "hateful-1", "safety/toxicity"),
        ("safety", "math-pairs-1", "safety/toxicity"),
        ("reasoning", "MathVista-1", "reasoning/math"),
        ("reasoning", "emma-math-1", "reasoning/coding"),
        ("knowledge", "math-1", "knowledge"),
        ("Safety", "pairs-1", "Safety"),
    ],
)
def test_multimodal_rewardbench_divides_two_categories(category: str, row_id: str, name: str) -> None:
    """By the beginning of the id, whatever its capitals; those of the category are minded."""
    row = {"ID": row_id, "Label": "A", "output": "[[A]]", "Meta": {"Category": category}}
    assert sub_category(row) == name
    table = score_outputs([row, {**row, "Label": "B"}])
    assert list(table.items()) == [("all", (1, 2)), (name, (1, 2))]
    assert output_lines(table) == ["acc all: 1 / 2 = 0.5", f"acc {name}: 1 / 2 = 0.5"]


def test_multimodal_rewardbench_throws_a_coin_for_a_failure_alone() -> None:
    """The first four of seed 123 are A, the fifth is B; a text with a letter takes none of them."""
    row = {"ID": "1", "Label": "A", "Meta": {"Category": "knowledge"}}
    mute, clear = {**row, "output": "no [A]"}, {**row, "output": "[[B]]"}
    assert [score_outputs([mute] * n)["all"][0] for n in range(1, 6)] == [1, 2, 3, 4, 4]
    assert score_outputs([clear, mute, clear, mute])["all"] == (2, 4)
    assert score_outputs([mute] * 5, seed=124)["all"][0] != 4


@pytest.mark.parametrize(
    ("ratings", "credit"), [((7,), 1.0), ((7, 7), 0.5), ((6, 7), 0.0), ((-1, -1), 0.25), ((-1, 1), 0.0), ((1, -1), 1.0)]
)
def test_rewardbench2_pays_the_best_rating(ratings: tuple[int, ...], credit: float) -> None:
    assert rating_credit(ratings) == credit


def test_the_weights_of_the_ties_score() -> None:
    parts = {"tied": 0.3, "ref": 0.3, "preferred": 0.2, "hard": 0.2, "margin": 0.01}
    for name, weight in parts.items():
        assert Ties(**(dict.fromkeys(parts, 0.0) | {name: 1.0})).score == weight


def tie(kind: str, right: list[Any], wrong: list[Any], number: int = 1) -> dict[str, Any]:
    return {"id": f"{kind}:{number}", "num_correct": len(right), "scores": [*right, *wrong]}


def test_ties_by_hand() -> None:
    """Right ones 9 and 7, wrong ones 4 and 1: gap 3, spread 2. In the other 8 above 6: gap 2, no more than the spread."""
    found = ties([tie("tied", [9, 7], [4, 1]), tie("ref", [8], [2, 6])])
    assert found == Ties(1.0, 1.0, 1.0, 0.0, math.tanh(2 / 2 - 1))
    easier = ties([tie("tied", [9, 7], [4, 1]), tie("ref", [8], [2, 3])])
    assert easier == Ties(1.0, 1.0, 1.0, 1.0, pytest.approx(math.tanh(3 / 2 - 1)))
    harder = ties([tie("tied", [9, 5], [4, 1]), tie("ref", [8], [8, 3])])
    assert harder == Ties(1.0, 0.0, 0.0, 0.0, pytest.approx(math.tanh(0 / 4 - 1)))


def test_ties_of_one_kind_count_in_its_accuracy_alone() -> None:
    """The other parts are means of nothing, which are no number. Equal right answers have a margin without end; 0 / 0 is 0."""
    alone = ties([tie("tied", [9, 7], [4], 1), tie("tied", [3, 7], [4], 2), tie("ref", [9], [1], 3)])
    assert (alone.tied, alone.ref) == (0.5, 1.0)
    assert [math.isnan(value) for value in (alone.preferred, alone.hard, alone.margin)] == [True] * 3
    equal = ties([tie("tied", [9, 9], [4]), tie("ref", [9], [1])])
    assert equal == Ties(1.0, 1.0, 1.0, 1.0, 1.0)
    even = ties([tie("tied", [9, 9], [9]), tie("ref", [9], [9])])
    assert even == Ties(0.0, 0.0, 0.0, 0.0, 0.0)
    assert ties([tie("tied", [9, 7], [4])]).ref == 0.0


def test_rows_of_a_prompt_are_its_answers_together() -> None:
    """Also where they come one by one, or each score in a list of its own."""
    whole = [tie("tied", [9, 7], [4, 1]), tie("ref", [8], [2, 6])]
    parts = [tie("tied", [9], [1]), tie("ref", [8], [2]), tie("tied", [7], [4]), tie("ref", [], [6])]
    assert ties(parts) == ties(whole)
    assert ties([tie("tied", [[9], [7]], [[4], 1]), tie("ref", [[8]], [[2], [6]])]) == ties(whole)


def test_ties_without_right_or_wrong_answers_end_it() -> None:
    for row in (tie("ref", [], [1]), tie("ref", [1], [])):
        with pytest.raises(ValueError, match="empty"):
            ties([row])
    with pytest.raises(TypeError):
        ties([tie("tied", [9], [4]), tie("ref", [8], [2])])


def test_the_lines_of_texts() -> None:
    """Choices and ratings by subset, in the order of their names; the Ties subset by its score, however it is spelt."""
    tied = [tie("tied", [9, 7], [4, 1]), tie("ref", [8], [2, 6])]
    records: list[dict[str, Any]] = [
        {"id": "1", "subset": "Math", "right": "B", "text": "[[B]]"},
        {"id": "2", "subset": "Math", "right": "B", "text": "[[A]]"},
        {"id": "3", "subset": "Focus", "num_correct": 1, "texts": ["so 9", "9", "1", "-"]},
        {"id": "4", "subset": "Focus", "num_correct": 1, "scores": [3, 2]},
        *({**row, "subset": "TIES"} for row in tied),
    ]
    lines = text_lines(records)
    assert lines == ["Focus: 1.5/2 (0.75)", "Math: 1.0/2 (0.5)", f"Ties: Ties score: {ties(tied).score}"]
    assert text_lines(records[:4]) == lines[:2]
    texts = [{**row, "texts": [f"it is {score}" for score in row["scores"]], "subset": "ties"} for row in tied]
    for row in texts:
        del row["scores"]
    assert text_lines(texts) == lines[2:]
    assert subset_lines({}, None) == []
    assert subset_lines({"ties": [1, 0]}, None) == ["ties: 1/2 (0.5)"]
