"""Recordings in the orders that they have: one drawn order of each pair is what much of the field records."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer

from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import format_note, run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli.judge import end_without_outcome
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import Choice, Completion, FinishReason, Order, Vote
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.parse import verdict_of
from rewardlab.verdicts.votes import judgment

NUM_PAIRS = 200


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred text pairs, the better response in either place of the file."""
    lines = [
        {"pair_id": f"p{n}", "question": f"q{n}?", "responses": [f"a{n}", f"the other {n}"], "preferred": n % 2}
        for n in range(NUM_PAIRS)
    ]
    return write(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", lines)


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sample(row: int, order: Order, right: bool) -> dict[str, Any]:
    first_is_better = (row % 2 == 0) == (order is Order.GIVEN)
    return {"row": row, "order": order.value, "text": f"<answer>{1 if first_is_better == right else 2}</answer>"}


def drawn_orders(num_wrong: int) -> list[dict[str, Any]]:
    """One sample of each pair, in an order that is drawn; the first ``num_wrong`` are wrong."""
    dice = random.Random(0)
    return [sample(row, dice.choice(list(Order)), row >= num_wrong) for row in range(NUM_PAIRS)]


def score(pairs_file: Path, lines: list[dict[str, Any]], folder: Path, **options: Any) -> Report:
    folder.mkdir(exist_ok=True)
    replay = write(folder / "replay.jsonl", lines)
    out = folder / f"out{len(list(folder.iterdir()))}"
    return run_bench(bench_settings("pairs", pairs_file, f"replay:{replay}", **options), out)[0]


@pytest.mark.parametrize("orders", ["auto", "recorded"])
def test_one_drawn_order_is_scored_as_it_was_recorded(pairs_file: Path, tmp_path: Path, orders: str) -> None:
    """Every fifth is wrong: 80 %, of no order's gaps; figures of both orders are not given."""
    report = score(pairs_file, drawn_orders(40), tmp_path, orders=orders)
    assert report.orders == "recorded"
    assert report.scores.accuracy.micro == 0.8
    assert (report.scores.invalid_rate, report.scores.num_votes_total) == (0.0, NUM_PAIRS)
    assert report.scores.swap_consistency is None
    assert report.scores.decision is None
    assert report.scores.k_curve[0].balanced is None
    assert report.scores.confidence == {}
    assert any("200 of 200 rows have samples in one order only" in note for note in report.notes)


@pytest.mark.parametrize("orders", ["both", "given", "random"])
def test_orders_that_a_recording_does_not_have_are_refused(pairs_file: Path, tmp_path: Path, orders: str) -> None:
    """Not half filled with failures, and the cure is named."""
    with pytest.raises(DataError, match=r"of 200 rows have .*orders=recorded"):
        score(pairs_file, drawn_orders(40), tmp_path, orders=orders)


def test_both_recorded_orders_are_scored_as_ever(pairs_file: Path, tmp_path: Path) -> None:
    """The default, and either name, give one and the same report."""
    lines = [sample(row, order, (row + len(order)) % 3 > 0) for row in range(NUM_PAIRS) for order in Order]
    auto, both, recorded = (score(pairs_file, lines, tmp_path, orders=orders) for orders in ("auto", "both", "recorded"))
    assert auto.orders == both.orders == "both"
    assert auto.scores == both.scores == recorded.scores
    assert auto.scores.swap_consistency is not None
    given = score(pairs_file, lines, tmp_path, orders="given")
    assert given.scores.num_votes_total == NUM_PAIRS


def test_a_recording_of_which_half_has_both_orders(pairs_file: Path, tmp_path: Path) -> None:
    """Each pair by what it has; consistency of half of the pairs is not that of all."""
    lines = [sample(row, Order.GIVEN, True) for row in range(NUM_PAIRS)]
    lines += [sample(row, Order.SWAPPED, False) for row in range(100)]
    report = score(pairs_file, lines, tmp_path)
    assert report.scores.accuracy.micro == (100 * 0.5 + 100) / 200
    assert (report.scores.swap_consistency, report.scores.decision) == (None, None)
    assert any("100 of 200 rows" in note for note in report.notes)


def test_draws_of_ten_each_in_its_own_order(pairs_file: Path, tmp_path: Path) -> None:
    """VL-RewardBench's own protocol: no sample is missing though the orders have unequal numbers."""
    dice = random.Random(1)
    lines = [sample(row, dice.choice(list(Order)), True) for row in range(NUM_PAIRS) for _ in range(10)]
    report = score(pairs_file, lines, tmp_path)
    assert (report.orders, report.scores.num_votes_total) == ("recorded", 10 * NUM_PAIRS)
    assert (report.scores.accuracy.micro, report.scores.invalid_rate) == (1.0, 0.0)
    assert report.scores.swap_consistency == 1.0  # all but a few pairs have both
    with pytest.raises(DataError, match="fewer samples in one order than in the other"):
        score(pairs_file, lines, tmp_path, orders="both")


def test_rows_that_were_not_recorded_still_fail(pairs_file: Path, tmp_path: Path) -> None:
    """One failure each, in the denominator."""
    report = score(pairs_file, drawn_orders(0)[:150], tmp_path)
    assert report.scores.accuracy.micro == 0.75
    assert report.scores.statuses["error"] == 50
    assert any("50 of 200 samples are not in the replay file" in note for note in report.notes)


def test_outcomes(pairs_file: Path, tmp_path: Path) -> None:
    """Right or wrong alone: accuracy, and nothing of places."""
    lines = [{"row": row, "right": row % 4 > 0} for row in range(NUM_PAIRS)]
    report = score(pairs_file, lines, tmp_path)
    assert (report.orders, report.scores.accuracy.micro) == ("recorded", 0.75)
    assert (report.scores.position_bias, report.scores.swap_consistency) == (None, None)
    assert len(report.scores.k_curve) == 1
    assert read_run(sorted(tmp_path.glob("out*"))[0]).report.scores.position_bias is None
    for bad in ({"row": 0, "right": "yes"}, {"row": 0, "right": 2}, {"row": 0, "right": True}):
        with pytest.raises(DataError, match="outcome"):
            score(pairs_file, [{"row": 0, "right": True}, bad], tmp_path)
    with pytest.raises(DataError, match="row 0 has both texts and an outcome"):
        score(pairs_file, [{"row": 0, "right": True}, sample(0, Order.GIVEN, True)], tmp_path)


def test_texts_without_an_order_are_told(pairs_file: Path, tmp_path: Path) -> None:
    """They are taken as given, which the recording does not say."""
    lines = [{"row": row, "text": "<answer>1</answer>"} for row in range(NUM_PAIRS)]
    report = score(pairs_file, lines, tmp_path)
    assert any("200 recorded texts name no order" in note for note in report.notes)
    assert report.scores.accuracy.micro == 0.5


def test_a_better_response_in_one_place_is_told(pairs_file: Path, tmp_path: Path) -> None:
    """Always first, as in R1-Reward's own inference: whoever names the first is right everywhere."""
    lines = [sample(row, Order.SWAPPED if row % 2 else Order.GIVEN, True) for row in range(NUM_PAIRS)]
    report = score(pairs_file, lines, tmp_path)
    assert report.baselines["first"].micro == 1.0
    assert any("is shown first in all of these" in note for note in report.notes)


def test_recorded_orders_need_a_recording(pairs_file: Path, tmp_path: Path) -> None:
    """A judge that is asked has no orders of its own."""
    with pytest.raises(ConfigError, match="recorded is for recordings"):
        run_bench(bench_settings("pairs", pairs_file, "baseline:first", orders="recorded"), tmp_path)
    with pytest.raises(ConfigError, match="orders: Input should be 'auto', 'both'"):
        run_bench(bench_settings("pairs", pairs_file, "baseline:first", orders="all"), tmp_path)


@pytest.mark.parametrize("name", sorted(set(WRITERS) - {"think_answer", "checklist"}))  # whose tag the default reads
def test_answers_in_another_form_are_told_with_the_flag_that_reads_them(name: str, pairs_file: Path, tmp_path: Path) -> None:
    """Nothing is read by the default; the flag of the note reads all, and so it does in the votes of the run."""
    lines = []
    for row in range(NUM_PAIRS):
        for order in Order:
            choice = Choice.FIRST if (row % 2 == 0) == (order is Order.GIVEN) else Choice.SECOND
            lines.append({"row": row, "order": order.value, "text": WRITERS[name](choice, "so it is")})
    unread = score(pairs_file, lines, tmp_path)
    assert (unread.scores.accuracy.micro, unread.scores.invalid_rate) == (0.0, 1.0)
    (note,) = unread.findings
    assert "all 400 answers" in note
    template = note.rpartition("template=")[2].split()[0]
    assert score(pairs_file, lines, tmp_path, template=template).scores.accuracy.micro == 1.0
    votes = next(tmp_path.glob("out*/votes.jsonl"))
    again = run_bench(bench_settings("pairs", pairs_file, f"replay:{votes}", template=template), tmp_path / "again")[0]
    assert (again.scores.accuracy.micro, again.scores.invalid_rate) == (1.0, 0.0)


def test_a_judge_that_answers_in_another_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a judge that was asked, the note names the recording that can be read without asking again."""
    texts = [Completion(f"so [[{letter}]]", FinishReason.STOP) for letter in "AB"]
    votes = [Vote(order, verdict_of(text, "think_answer"), text) for text in texts for order in Order]
    note = format_note(BaselineJudge("first"), [judgment("p", votes)], tmp_path / "a run")
    assert f"--judge 'replay:{tmp_path}/a run/votes.jsonl' template=double_brackets" in note
    with pytest.raises(typer.Exit):
        end_without_outcome(judgment("p", votes))
    assert "all 4 answers without a verdict" in capsys.readouterr().err
