"""The benchmarks' own scorers: what they print on the same outputs, recorded from them, and each quirk they are known for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rewardlab.benchmarks import mm_rlhf, mmrb2, multimodal_rewardbench, vl_rewardbench
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.mmrb2 import lines_of_predictions
from rewardlab.benchmarks.official import official_lines
from rewardlab.benchmarks.rewardbench2 import official as rewardbench2
from rewardlab.benchmarks.vl_rewardbench import draws_of_votes
from rewardlab.types import Completion, FinishReason, Order, PreferencePair, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.parse import verdict_of
from rewardlab.verdicts.votes import judgment

SAYS = (
    "Overall Judgment: Answer {a} is better.",
    "**Overall Judgment:**\n Answer {a} is slightly better",
    "Therefore, Answer {b} is better.\nOverall Judgment: Answer {a} is the better",
    "I cannot say.",
    "Overall Judgment: Answer 3 is better.",
)


def vl_rows() -> list[dict[str, Any]]:
    """43 items of all sources, two of which share id, query and texts; twelve draws each, one in five without a verdict."""
    dice, rows = random.Random(7), []
    ids = ["RLAIF-V-1", "RLHF-V-2", "hallucination_pair-3", "mathverse-4", "mmmu_pro-5", "wildvision-6", "svit-7"] * 6
    for place, row_id in enumerate([*ids, "RLAIF-V-1"]):
        responses = ["one", "two"] if place != 42 else ["two", "one"]
        query = "q" if place in (0, 42) else f"q{place}"
        for _ in range(12):
            a = dice.choice([1, 2])
            text = dice.choice(SAYS).format(a=a, b=3 - a)
            meta = {"filter_choice": text, "random_number": dice.choice([0, 1])}
            rows.append({"id": row_id, "query": query, "response": responses, "ranking": [0, 1], "meta": meta})
    return rows


def mmrb_rows() -> list[dict[str, Any]]:
    dice, rows = random.Random(7), []
    for place in range(60):
        output = dice.choice(["so [[A]]", "so [[B]]", "first [[A]], no: [[B]]", "neither"])
        row_id = dice.choice(["PAIRS", "hateful", "mathvista", "emma"]) + f"-{place}"
        category = dice.choice(["safety", "reasoning", "knowledge"])
        rows.append({"ID": row_id, "Label": dice.choice("AB"), "output": output, "Meta": {"Category": category}})
    return rows


def mm_rlhf_rows() -> list[dict[str, Any]]:
    dice, rows = random.Random(7), []
    for place in range(40):
        path = dice.choice(["mcq/1.png", "long/2.png", "short/3.png", "safety/4.png", "video/long/5", "other/6.png"])
        key = "video" if "video" in path else "image"
        rows.append({"id": f"{path}-{place % 12}", key: path, "rewards": [dice.randrange(4), dice.randrange(3)]})
    return rows


def ties_rows() -> list[dict[str, Any]]:
    dice, rows = random.Random(7), []
    for number in range(12):
        for kind, num_correct in (("ref", 1), ("tied", dice.choice([2, 4]))):
            right = [dice.randrange(5, 11) for _ in range(num_correct)]
            rows.append(
                {
                    "id": f"{kind}:{number}",
                    "num_correct": num_correct,
                    "scores": [*right, dice.randrange(1, 9), dice.choice([-1, 3])],
                }
            )
    return rows


# Printed by the released scripts on these rows (cal.py with its misspelt branch mended), copied.
VL = """\
k=1 ----------------
Number of total items: 42
Number of agree items: 13, rate: 0.3095, normalized rate: 0.3824
Number of reject items: 21, rate: 0.5, normalized rate: 0.6176
Number of doesntMatch items: 8, rate: 0.1905
====================
general\t hallucination\t reasoning
30.00\t 46.15\t 36.36
Overall Accuracy: 38.24
Macro Average Acc: 37.51
====================
k=3 ----------------
Number of total items: 42
Number of agree items: 27, rate: 0.6429, normalized rate: 0.7941
Number of reject items: 7, rate: 0.1667, normalized rate: 0.2059
Number of doesntMatch items: 2, rate: 0.0476
====================
general\t hallucination\t reasoning
50.00\t 87.50\t 90.00
Overall Accuracy: 79.41
Macro Average Acc: 75.83
====================
k=5 ----------------
Number of total items: 42
Number of agree items: 16, rate: 0.381, normalized rate: 0.7273
Number of reject items: 6, rate: 0.1429, normalized rate: 0.2727
Number of doesntMatch items: 2, rate: 0.0476
====================
general\t hallucination\t reasoning
60.00\t 87.50\t 75.00
Overall Accuracy: 72.73
Macro Average Acc: 74.17
====================
k=7 ----------------
Number of total items: 42
Number of agree items: 15, rate: 0.3571, normalized rate: 0.7143
Number of reject items: 6, rate: 0.1429, normalized rate: 0.2857
Number of doesntMatch items: 1, rate: 0.0238
====================
general\t hallucination\t reasoning
71.43\t 77.78\t 60.00
Overall Accuracy: 71.43
Macro Average Acc: 69.74
====================
k=9 ----------------
Number of total items: 42
Number of agree items: 18, rate: 0.4286, normalized rate: 0.7826
Number of reject items: 5, rate: 0.119, normalized rate: 0.2174
Number of doesntMatch items: 1, rate: 0.0238
====================
general\t hallucination\t reasoning
77.78\t 100.00\t 50.00
Overall Accuracy: 78.26
Macro Average Acc: 75.93
====================
"""
MMRB = """\
acc all: 39 / 60 = 0.65
acc reasoning/coding: 7 / 10 = 0.7
acc safety/bias: 3 / 6 = 0.5
acc knowledge: 16 / 27 = 0.5925925925925926
acc safety/toxicity: 11 / 15 = 0.7333333333333333
acc reasoning/math: 2 / 2 = 1.0
"""
MM_RLHF = """\

Category-wise Metrics:
Category: mcq
  Accuracy: 0.29
  ACC+: 0.20
  Total: 7
Category: long
  Accuracy: 0.38
  ACC+: 0.36
  Total: 13
Category: short
  Accuracy: 0.40
  ACC+: 0.25
  Total: 5
Category: safety
  Accuracy: 0.43
  ACC+: 0.20
  Total: 7
Category: video
  Accuracy: 0.00
  ACC+: 0.00
  Total: 0

Overall Metrics:
Overall Accuracy: 0.38
Overall ACC+: 0.27
Total Items: 40
"""
TIES = 0.4954032626189391


def test_vl_rewardbench_prints_what_its_scorer_prints() -> None:
    """K = 1, 3, 5, 7, 9, with draws that say nothing, draws that say 3, both answers in one text, and one item in two rows."""
    assert "\n".join(line for at in vl_rewardbench.score_draws(vl_rows()) for line in at.lines()) + "\n" == VL


def vl_row(row_id: str, text: str, shown: int = 0) -> dict[str, Any]:
    meta = {"filter_choice": text, "random_number": shown}
    return {"id": row_id, "query": "q", "response": ["good", "bad"], "ranking": [0, 1], "meta": meta}


def test_vl_rewardbench_quirks() -> None:
    """Failures vanish from the denominator; a file without one decided item of some source ends the scorer; 3 agrees."""
    says = "Overall Judgment: Answer {} is better."
    groups = ["RLAIF-V-1", "mathverse-2", "wildvision-3"]
    rows = [vl_row(name, says.format(1)) for name in groups] + [vl_row(f"RLAIF-V-{n}", "no idea") for n in range(5, 14)]
    (found,) = vl_rewardbench.score_draws(rows, ks=(1,))
    assert (found.overall, found.doesnt_match) == (1.0, 9)
    assert found.groups["reasoning"] == 1 / (1 + 1e-6)
    (third,) = vl_rewardbench.score_draws([vl_row(name, says.format(3)) for name in groups], ks=(1,))
    assert third.overall == 1.0
    (swapped,) = vl_rewardbench.score_draws([vl_row(name, says.format(1), shown=1) for name in groups], ks=(1,))
    assert swapped.overall == 0.0
    (ended,) = vl_rewardbench.score_draws([*rows, vl_row("svit-9", "no idea")], ks=(1,))
    assert (ended.overall, ended.macro) == (None, None)
    assert list(ended.lines())[-1] == vl_rewardbench.ENDS


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Overall Judgment: Answer 1 is better. Therefore Answer 2 is better", 2),
        ("therefore it rains.\n\nSome say Answer 12 is slightly better", 12),
        ("Overall Judgment: Answer 2 is the\nbetter", 2),
        ("Overall Judgment: Answer 1 is much better", None),
        ("Answer 1 is better", None),
    ],
)
def test_the_pattern_of_vl_rewardbench(text: str, number: int | None) -> None:
    """The last sentence of its form, anywhere after the first heading."""
    assert vl_rewardbench.answer_number(text) == number


def test_its_grouping() -> None:
    """Groups are found by the first word of an id, capitals minded."""
    names = {
        "RLAIF-V-1": 1,
        "RLHF-V-1": 1,
        "hallucination_pair-1": 1,
        "mathverse_1": 2,
        "mmmu_pro-1": 2,
        "rlhf-1": 0,
        "povid": 0,
    }
    assert {name: vl_rewardbench.GROUPS.index(vl_rewardbench.scorer_group(name)) for name in names} == names


@pytest.mark.parametrize("seed", range(100))
def test_multimodal_rewardbench_by_lmms_evals_rule(seed: int, tmp_path: Path) -> None:
    """Its coin falls alike for every answer: all without a verdict are A, so that a mute judge scores what A scores."""
    dice = random.Random(seed)
    rows = [
        row | {"output": dice.choice(["[[A]]", "[[B]]", "[[B]] [[A]]", " A ", ""]), "Label": dice.choice("AB")}
        for row in mmrb_rows()[: dice.randrange(1, 60)]
    ]
    table: dict[str, list[bool]] = {"all": []}
    for row in rows:
        kind, name = row["Meta"]["Category"], row["ID"].lower()
        if kind == "safety":
            kind += "/bias" if name.startswith("pairs") else "/toxicity"
        if kind == "reasoning":
            kind += "/math" if name.startswith("math") else "/coding"
        says = "B" if "[[B]]" in row["output"] and "[[A]]" not in row["output"] else "A"
        for group in ("all", kind):
            table.setdefault(group, []).append(says == row["Label"])
    expected = [f"{name}: {sum(flags)} / {len(flags)} = {sum(flags) / len(flags):.2f}" for name, flags in table.items()]
    expected.append(f"multimodal_rewardbench_accuracy: {sum(table['all']) / len(rows):.4f}")
    (tmp_path / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert official_lines("multimodal_rewardbench_lmms_eval", tmp_path / "o.jsonl") == expected


def test_multimodal_rewardbench_prints_what_its_scorer_prints() -> None:
    """Coins for failures, A where both letters stand; garbage scores a half, which no judge of ours ever gets."""
    assert "\n".join(multimodal_rewardbench.output_lines(multimodal_rewardbench.score_outputs(mmrb_rows()))) + "\n" == MMRB
    garbage = [{**row, "output": "?"} for row in mmrb_rows() * 20]
    right, total = multimodal_rewardbench.score_outputs(garbage)["all"]
    assert right / total == pytest.approx(0.5, abs=0.05)


def test_mm_rlhf_prints_what_its_scorer_prints() -> None:
    """Equal rewards are wrong; categories by the first word in a path; ids counted in its two ways."""
    assert "\n".join(mm_rlhf.reward_lines(mm_rlhf.score_rewards(mm_rlhf_rows()))) + "\n" == MM_RLHF
    assert mm_rlhf.score_rewards([])["overall"] == {"accuracy": 0, "acc_plus": 0, "total": 0}


def test_mmrb2() -> None:
    """Worked by hand: forward right, reverse right when flipped, an empty judgement left out, "tie" wrong, one missing."""
    pairs = [{"id": str(n), "chosen": "A"} for n in range(4)]
    predictions = {
        "0": {"forward": [{"judgement": "A"}, {"judgement": "B"}], "reverse": [{"judgement": "B"}]},
        "1": {"forward": [{"judgement": None}], "reverse": [{"judgement": "A"}]},
        "2": {"forward": [{"judgement": "tie"}], "reverse": []},
    }
    found = mmrb2.score_task(pairs, predictions, "task1_image")
    assert (found.correct, found.trials, found.missing, found.accuracy) == (2, 4, 1, 0.5)
    assert found.lines()[-2] == "Accuracy: 0.5000 (50.00%)"
    other = mmrb2.TaskScore("task2_edit", 1, 0, 2, 2)
    assert mmrb2.overall([found, other]) == 4 / 6  # of trials, not (0.5 + 1) / 2
    assert mmrb2.summary_lines([found, other])[-2] == "Overall                    66.67%"


def test_mmrb2_of_several_tasks_is_summed_up(tmp_path: Path) -> None:
    """A folder of tasks ends as the scorer's own ``--task all`` does; one task has no summary."""
    predictions = {}
    for task, letters in (("t2i", "AAB"), ("edit", "A"), ("reasoning", "BB")):
        pairs = [{"id": f"{task}{n}", "chosen": "A"} for n in range(len(letters))]
        (tmp_path / f"{task}.json").write_text(json.dumps({"pairs": pairs}))
        predictions |= {
            pair["id"]: {"forward": [{"judgement": letter}], "reverse": [{"judgement": "B"}]}
            for pair, letter in zip(pairs, letters, strict=True)
        }
    lines = lines_of_predictions(predictions, tmp_path)
    assert lines[lines.index("SUMMARY") + 4 :] == [
        "task1_image                83.33%      0",
        "task2_edit                100.00%      0",
        "task4_reasoning            50.00%      0",
        "-" * 50,
        "Overall                    75.00%",  # 9 of 12 trials
        "=" * 50,
    ]
    assert "SUMMARY" not in lines_of_predictions(predictions, tmp_path / "edit.json")


def test_exported_draws_are_what_the_inference_writes() -> None:
    """``cal.py`` reads ``meta.flag_status`` of every draw; here of all three, in both orders."""
    for preferred in (0, 1):
        pair = PreferencePair("RLAIF-V-1", "q", ("a", "b"), preferred)
        row = Row(0, pair, "hallucination", "q", {})
        for text, first_is in (("Overall Judgment: Answer 1 is better.", 0), ("Overall Judgment: Answer 2 is better.", 1)):
            votes = []
            for order in Order:
                completion = Completion(text, FinishReason.STOP)
                votes.append(Vote(order, verdict_of(completion, "overall_judgment"), completion))
            for seed in range(4):
                (draw,) = draws_of_votes([row], [judgment("p", votes)], "overall_judgment", seed)
                named = first_is if draw["meta"]["random_number"] == 0 else 1 - first_is
                assert draw["meta"]["flag_status"] == ("agree" if named == preferred else "reject")
                assert draw["meta"]["filter_number"] == first_is + 1
        mute = [Vote(order, Verdict(None, VerdictStatus.NO_VERDICT), Completion("no", FinishReason.STOP)) for order in Order]
        (draw,) = draws_of_votes([row], [judgment("p", mute)], "overall_judgment", 0)
        assert (draw["meta"]["flag_status"], draw["meta"]["filter_number"]) == ("doesntMatch", -1)


def test_rewardbench2() -> None:
    """The Ties score as its function gives it; letters, ratings and shared first places worked by hand."""
    assert rewardbench2.ties(ties_rows()).score == TIES
    assert [rewardbench2.choice_credit(text, "B") for text in ("[[B]]", "[[C]] [[B]]", "[[A]] or [[B]]", "B")] == [
        1,
        1,
        0,
        0.25,
    ]
    assert [rewardbench2.rating(text) for text in ("so 7", "10/10 ", "8.", "0", "11", "")] == [7, 10, -1, -1, -1, -1]
    ratings = [(9, 9, 3, 1), (8, 9, 1, 1), (-1, -1, -1, -1), (9, 9, 9, 9), (-1, 3, 2, 1)]
    assert [rewardbench2.rating_credit(own) for own in ratings] == [0.5, 0, 0.25, 0.25, 0]
    texts = [{"id": str(n), "subset": "Math", "right": "B", "text": f"[[{'B' if n < 2 else 'C'}]]"} for n in range(10)]
    assert rewardbench2.text_lines(texts) == ["Math: 2/10 (0.2)"]  # a column of whole numbers
    assert rewardbench2.text_lines([*texts[:9], {**texts[9], "text": "none"}]) == ["Math: 2.25/10 (0.225)"]
    ties = rewardbench2.ties(ties_rows())
    assert rewardbench2.subset_lines({"Math": [1, 0, 0.25]}, ties) == [
        "Math: 1.25/3 (0.4166666666666667)",
        f"Ties: Ties score: {TIES}",
    ]


@pytest.mark.parametrize(
    ("failed", "printed"),
    [([], ["Focus: 0/6 (0.0)", "Safety: 1/1 (1.0)"]), (["none"], ["Focus: 0.0/6 (0.0)", "Safety: 1.25/2 (0.625)"])],
)
def test_rewardbench2_has_one_column_of_credits(failed: list[str], printed: list[str]) -> None:
    """Arrow holds the scorer's credits of all subsets in one column: one failed text makes fractions of all of them."""
    column = pa.array([0] * 6 + [1] + [0.25] * len(failed)).to_pylist()
    assert f"Focus: {sum(column[:6])}/6 (0.0)" == printed[0]
    texts = [("Focus", "[[A]]")] * 6 + [("Safety", text) for text in ("[[B]]", *failed)]
    records = [{"id": "x", "subset": name, "right": "B", "text": text} for name, text in texts]
    assert rewardbench2.text_lines(records) == printed
