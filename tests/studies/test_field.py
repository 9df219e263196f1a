"""Each public scorer's rule on answers worked by hand, and the table of one recording under all of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.field import SimulatedJudge, main, recorded
from eval.field_study import rules
from eval.field_study.audit import NUM_DRAWS, FieldScore, audit_field, audit_lines, field_picture
from rewardlab.benchmarks.arithmetic import fits
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.replay import Replay
from rewardlab.benchmarks.vl_rewardbench import GROUPINGS
from rewardlab.errors import DataError
from rewardlab.types import Choice, Order

FIRST, SECOND = Choice.FIRST, Choice.SECOND
IDS = ("RLAIF-V-1", "RLHF-V-1", "hallucination_pair-1", "wildvision-1", "mathverse_1", "mmmu_pro_1")


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six rows, two of each group; the lengths of 0, 2 and 4 are even."""
    return write_lines(
        tmp_path / "vl.jsonl",
        [
            {"id": row_id, "prompt": f"q{n}?", "chosen": "aaa" + "a" * (n % 2), "rejected": "bbb", "image": "x.png"}
            for n, row_id in enumerate(IDS)
        ],
    )


def rows_of(data: Path) -> list[Row]:
    return find_benchmark("vl_rewardbench").load(data, images=None, with_images=False)


def audited(data: Path, lines: list[dict[str, Any]], template: str | None = None) -> dict[str, FieldScore]:
    path = write_lines(data.parent / "replay.jsonl", lines)
    return {score.name: score for score in audit_field(Replay(path, template), rows_of(data))}


def answers(right: str, wrong: str, mute: str = "I cannot say.") -> list[dict[str, Any]]:
    """Both orders of six rows: right in 0, 2 and 4, always the first in 1 and 3, nothing that can be read in 5."""
    lines = []
    for row in range(6):
        for order, said in ((Order.GIVEN, right), (Order.SWAPPED, right if row % 2 else wrong)):
            lines.append({"row": row, "order": order.value, "text": mute if row == 5 else said})
    return lines


def test_groups() -> None:
    """484/448/318 and 631/301/318 come of these rules; here one id of each source."""
    assert [rules.case_blind_group(row_id) for row_id in IDS] == [
        *("general", "general", "hallucination"),
        *("general", "reasoning", "reasoning"),
    ]
    assert [rules.unified_reward_group(row_id) for row_id in IDS] == [
        *("hallucination", "hallucination", "general"),
        *("general", "reasoning", "reasoning"),
    ]


@pytest.mark.parametrize(
    ("credit", "text", "better", "earned"),
    [
        (rules.official_credit, "Overall Judgment: Answer 1 is better", FIRST, 1.0),
        (rules.official_credit, "Overall Judgment: Answer 3 is better", FIRST, 1.0),
        (rules.official_credit, "Overall Judgment: Answer 2 is better", FIRST, 0.0),
        (rules.official_credit, "I cannot say", FIRST, None),
        (rules.r1_reward_credit, "<answer> 1.0 </answer>", FIRST, 1.0),
        (rules.r1_reward_credit, "<answer>Response 1</answer>", FIRST, 0.0),
        (rules.r1_reward_credit, "I cannot say", SECOND, 1.0),
        (rules.proxy_grm_credit, "<answer>Response 1</answer>", FIRST, 1.0),
        (rules.proxy_grm_credit, "I cannot say, 1 has 2 errors", SECOND, 1.0),
        (rules.proxy_grm_credit, "I cannot say", FIRST, 0.0),
        (rules.unified_reward_credit, "B says: Answer 1 is better. <answer>Answer 2 is better</answer>", FIRST, 1.0),
        (rules.unified_reward_credit, "answer 1 is better", FIRST, 0.0),
        (rules.lmms_eval_credit, "Overall Judgment: Answer 3 is better", FIRST, 0.0),
        (rules.lmms_eval_credit, "I cannot say", FIRST, 0.5),
        (rules.vlmevalkit_credit, "Overall Judgment: Answer 1 is better", FIRST, 1.0),
        (rules.vlmevalkit_credit, "I cannot say", FIRST, 0.0),
    ],
)
def test_credits(credit: Any, text: str, better: Choice, earned: float | None) -> None:
    """By hand, from what each scorer does with an answer."""
    assert credit(text, better) == earned


def test_one_judge_gets_as_many_scores_as_scorers(data: Path) -> None:
    """Worked by hand. Rows 0, 2 and 4 are right in both orders, 1 and 3 name the first, 5 says nothing."""
    scores = audited(data, answers("<answer>1</answer>", "<answer>2</answer>"))
    assert list(scores) == ["rewardlab", *(rule.name for rule in rules.RULES)]
    ours = scores["rewardlab"]
    assert ours.overall == (3 + 2 * 0.5) / 6
    assert ours.groups == {"general": 0.5, "hallucination": (1 + 0.5 + 1) / 3, "reasoning": 0.5}
    first = scores["R1-Reward"]  # the better one first: 5 of 6, the mute one counts as the second
    assert (first.overall, first.num_rows, first.num_regrouped) == (5 / 6, 6, 2)
    assert first.groups == {"general": 1.0, "hallucination": 1.0, "reasoning": 0.5}
    by_length = scores["lmms-eval"]  # 1 and 3 are shown swapped and so are wrong; 5 is a coin
    assert by_length.overall == (3 + 0.5) / 6
    assert by_length.macro == by_length.figure == pytest.approx((0 + 2 / 3 + 0.75) / 3)
    assert scores["VLMEvalKit"].overall == 3 / 6
    official = scores["official cal.py, K = 1"]
    assert (official.num_rows, official.num_out) == (5, 1)
    assert official.draws == (3 / 5, 1.0)
    assert scores["UnifiedReward"].num_regrouped == 1
    assert len({round(score.figure, 4) for score in scores.values()}) >= 5


def test_an_order_that_is_drawn_is_drawn_many_times(data: Path) -> None:
    """By hand: rows 0, 2 and 4 are right in both orders, 1 and 3 in one of two, 5 in none. Of four draws of their orders one is
    right on 3, two on 4 and one on 5, so that the mean is 4 of 6. Scorers with an order of their own have no range."""
    scores = audited(data, answers("<answer>1</answer>", "<answer>2</answer>"))
    for score in (scores["Proxy-GRM"], scores["UnifiedReward"]):
        assert score.draws == (3 / 6, 5 / 6)
        assert score.overall == pytest.approx(4 / 6, abs=4 * (1 / 72 / NUM_DRAWS) ** 0.5)  # 4 deviations of a mean of draws
    assert {name for name, score in scores.items() if score.draws is None} == {
        "rewardlab",
        "R1-Reward",
        "lmms-eval",
        "VLMEvalKit",
    }
    lines = audit_lines(list(scores.values()))
    assert next(line for line in lines if line.startswith("| Proxy-GRM")).endswith("| 6 | 50.0 to 83.3 |")
    assert next(line for line in lines if line.startswith("| lmms-eval")).endswith("| 6 |  |")
    drawing = ET.fromstring(field_picture(list(scores.values())))
    ranges = [line for line in drawing.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "draws"]
    assert len(ranges) == 3
    dots = {float(dot.get("cx", 0)) for dot in drawing.iter("{http://www.w3.org/2000/svg}circle")}
    assert all(any(float(line.get("x1", 0)) < dot < float(line.get("x2", 0)) for dot in dots) for line in ranges)


def test_a_recording_in_one_order(data: Path) -> None:
    """Scorers that draw an order take the one there is, and say for how many rows; who insists on one leaves rows out."""
    lines = [line for line in answers("<answer>1</answer>", "<answer>2</answer>") if line["order"] == "swapped"]
    scores = audited(data, lines)
    assert "R1-Reward" not in scores
    assert scores["lmms-eval"].num_other_order == 3
    assert scores["rewardlab"].overall == 3 / 6


def test_scores_and_outcomes_have_no_texts(data: Path) -> None:
    """And rows that the data does not have are refused."""
    for line in ({"row": 0, "scores": [1, 0]}, {"row": 0, "right": True}):
        with pytest.raises(DataError, match="holds scores or outcomes"):
            audited(data, [line])
    with pytest.raises(DataError, match="row 9"):
        audited(data, [{"row": 9, "text": "x"}])


def test_the_published_row_is_of_this_grouping() -> None:
    """R1-Reward's 63.84, 85.71, 64.78 and 71.92 add up under the grouping of its rule, and under no other."""
    row = {"general": 63.84, "hallucination": 85.71, "reasoning": 64.78}
    names = [fit.grouping for fit in fits(row, 71.92, GROUPINGS) if fit.adds_up]
    assert names == ["blind to capitals' difference (R1-Reward)"]


@pytest.mark.slow
def test_the_recording_of_the_docs_picture(data: Path, tmp_path: Path) -> None:
    """Ours is the simulated judge's chance of a right answer; the same seed records the same answers."""
    rows = [replace(row, row=number) for number, row in enumerate(rows_of(data) * 400)]
    judge = SimulatedJudge()
    lines = list(recorded(rows, judge))
    assert lines == list(recorded(rows, judge))
    path = tmp_path / "recording.jsonl"
    path.write_text("\n".join(lines) + "\n")
    scores = {score.name: score for score in audit_field(Replay(path, None), rows)}
    assert scores["rewardlab"].overall == pytest.approx(sum(judge.accuracy(row.group) for row in rows) / len(rows), abs=0.03)
    assert scores["R1-Reward"].overall > scores["rewardlab"].overall + 0.05


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table, and a picture that is well-formed."""
    path = write_lines(tmp_path / "r.jsonl", answers("<answer>1</answer>", "<answer>2</answer>"))
    main([str(path), "--data", str(data), "--picture", str(tmp_path / "field.svg")])
    assert "7 scores" in capsys.readouterr().out
    picture = (tmp_path / "field.svg").read_text()
    assert len(ET.fromstring(picture).findall("{*}circle")) == 7
    assert picture == field_picture(list(audited(data, answers("<answer>1</answer>", "<answer>2</answer>")).values()))
