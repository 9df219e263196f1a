"""Where VL-RewardBench's ``cal.py`` ends early, and what it prints by then; what makes an item of draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.official import official_lines
from rewardlab.benchmarks.vl_rewardbench import ENDS, SEED, AtK, answer_number, lines_of_draws, score_draws
from rewardlab.errors import DataError

IDS = ("RLAIF-V-1", "RLHF-V-2", "hallucination_pair-3", "mathverse_4", "mmmu_pro-5", "wildvision-6", "svit-7", "other-8")
GROUPS_OF_IDS = ("hallucination",) * 3 + ("reasoning",) * 2 + ("general",) * 3


def drawn(row_id: str, number: int | None, **fields: Any) -> dict[str, Any]:
    """A draw that names an answer, of which 1 is the better one; None: one without a verdict."""
    text = "no idea" if number is None else f"Overall Judgment: Answer {number} is better."
    row = {"id": row_id, "query": "q", "response": ["good", "bad"], "ranking": [0, 1]}
    return row | {"meta": {"filter_choice": text, "random_number": 0}} | fields


def scored(rows: list[Any], k: int = 1) -> AtK:
    (found,) = score_draws(rows, ks=(k,))
    assert found.k == k
    return found


def printed(rows: list[Any]) -> list[str]:
    return list(scored(rows).lines())


@pytest.mark.parametrize("undecided", [(*IDS[:3],), *((name,) for name in (*IDS[:3], IDS[5])), IDS[3:5], IDS[6:]])
def test_a_source_without_a_decided_item_ends_it(undecided: tuple[str, ...]) -> None:
    """Before any share: the sources are RLAIF, RLHF, POVID, both of reasoning together, WildVision, and the rest."""
    found = scored([drawn(name, None if name in undecided else 2) for name in IDS])
    num = len(undecided)
    counts = (found.num_items, found.agree, found.reject, found.doesnt_match)
    assert counts == (8, 0, 8 - num, num)
    assert (set(found.groups.values()), found.overall, found.macro) == ({None}, None, None)
    assert list(found.lines()) == [
        "k=1 ----------------",
        "Number of total items: 8",
        "Number of agree items: 0, rate: 0.0, normalized rate: 0.0",
        f"Number of reject items: {8 - num}, rate: {(8 - num) / 8}, normalized rate: 1.0",
        f"Number of doesntMatch items: {num}, rate: {num / 8}",
        ENDS,
    ]


@pytest.mark.parametrize("undecided", [IDS[3], IDS[4], IDS[6], IDS[7]])
def test_another_of_the_same_source_is_enough(undecided: str) -> None:
    rows = [drawn(name, None if name == undecided else 1) for name in IDS]
    assert scored(rows).overall == 1.0
    assert printed(rows)[-3:] == ["Overall Accuracy: 100.00", "Macro Average Acc: 100.00", "=" * 20]


@pytest.mark.parametrize("group", ["general", "hallucination", "reasoning"])
def test_a_group_that_is_not_in_the_file_ends_it_later(group: str) -> None:
    """The others have their shares by then; reasoning alone is divided by a little more than its number: 0 of nothing."""
    names = [name for name, of in zip(IDS, GROUPS_OF_IDS, strict=True) if of != group]
    found = scored([drawn(name, 1) for name in names])
    shares: dict[str, float | None] = {"general": 1.0, "hallucination": 1.0, "reasoning": 2 / (2 + 1e-6)}
    assert found.groups == shares | {group: 0.0 if group == "reasoning" else None}
    assert (found.num_items, found.agree, found.overall, found.macro) == (len(names), len(names), None, None)
    header = ["=" * 20, "general\t hallucination\t reasoning"]
    line = ["100.00\t 100.00\t 0.00"] if group == "reasoning" else []
    assert list(found.lines())[5:] == [*header, *line, ENDS]


def test_nothing() -> None:
    """Zeros without a sign, for a little is added to what they are divided by."""
    nothing = [f"Number of {name} items: 0, rate: 0.0, normalized rate: 0.0" for name in ("agree", "reject")]
    head = ["k=1 ----------------", "Number of total items: 0", *nothing, "Number of doesntMatch items: 0, rate: 0.0"]
    assert printed([]) == [*head, "=" * 20, "general\t hallucination\t reasoning", ENDS]
    assert printed([None, None]) == printed([])


def test_what_an_item_is() -> None:
    """Id, query and sorted responses, one behind the other: rows that share them are one item, in whatever parts."""
    one = drawn("ab", 1, query="c", response=["x", "y\tz"])
    same = [one | {"id": "a", "query": "bc"}, one | {"response": ["y\tz", "x"]}, one | {"response": ["x\ty", "z"]}]
    assert [scored([one, row], k=3).num_items for row in same] == [1, 1, 1]
    others = [one | {"id": "a"}, one | {"query": "d"}, one | {"response": ["x", "z"]}]
    assert [scored([one, row], k=3).num_items for row in others] == [2, 2, 2]


@pytest.mark.parametrize(("k", "num_decided"), [(0, 1), (1, 1), (2, 0), (9, 0)])
def test_k_draws_are_looked_at(k: int, num_decided: int) -> None:
    """One at least. Of one that agrees and one that does not either decides alone, and both together do not."""
    found = scored([drawn("svit-1", 1), drawn("svit-1", 2)], k)
    assert (found.agree + found.reject, found.num_items) == (num_decided, 1)


def test_the_lines_of_a_file() -> None:
    """Of K = 1, 3, 5, 7, 9, as far as it gets; from objects, or from the column 0 that pandas makes of them."""
    rows = [drawn(name, 1) for name in IDS]
    lines = lines_of_draws(rows)
    assert lines == [line for at_k in score_draws(rows, (1, 3, 5, 7, 9), SEED) for line in at_k.lines()]
    assert [line for line in lines if line.startswith("k=")] == [f"k={k} ----------------" for k in (1, 3, 5, 7, 9)]
    assert lines_of_draws([{"0": row} for row in rows]) == lines
    assert lines_of_draws([None, *rows, None]) == lines
    ended = lines_of_draws([drawn("svit-1", None)])
    assert (ended[-1], len(ended)) == (ENDS, 6)
    assert lines_of_draws([])[-1] == ENDS


def test_lines_that_are_null_are_passed_over(tmp_path: Path) -> None:
    """In a file, too: the scorer's own reader gives None for them. Scorers that would fail at one refuse the file."""
    rows = [drawn(name, 1) for name in IDS]
    outputs = tmp_path / "outputs.jsonl"
    outputs.write_text("\n".join(["null", *map(json.dumps, rows), "", "null"]) + "\n")
    assert official_lines("vl_rewardbench", outputs) == lines_of_draws(rows)
    with pytest.raises(DataError, match=r"row 0 \(line 1\): expected .*, not a JSON NoneType"):
        official_lines("mm_rlhf", outputs)
    outputs.write_text("null\n3\n")
    with pytest.raises(DataError, match=r"row 1 \(line 2\): expected .*, not a JSON int"):
        official_lines("vl_rewardbench", outputs)


def test_stars_and_new_lines_are_not_read() -> None:
    assert answer_number("Overall Judgment: Ans*wer 1 i\ns bet*ter") == 1
