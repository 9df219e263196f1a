"""What a judge that often gives no verdict looks like, from its recorded answers to the gate: it is never the better for it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks import runner
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.findings import key_phrase
from rewardlab.benchmarks.leaderboard import NOTES, leaderboard
from rewardlab.benchmarks.report import report_markdown
from rewardlab.benchmarks.report_model import Report, headline_sentence
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.benchmarks.suite import suite_markdown
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Message, Order
from rewardlab.verdicts.parse import format_verdict
from tests.support.shell import run_main

REFUSAL, NUM_VOTES = "I would rather not say.", 5
Answer = Callable[[int, int], str]  # (right place as shown, number of the vote) -> text


@pytest.fixture(scope="module")
def folder(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_parquet(demo_pairs[0][:120], folder / "pairs.parquet")
    return folder


def record(folder: Path, pairs: Any, name: str, answer: Answer, num_votes: int = NUM_VOTES) -> Path:
    """Write what a judge answers as a recording."""
    lines = [
        {"row": row, "order": order.value, "text": answer(1 + ((pair.preferred == 1) != (order is Order.SWAPPED)), vote)}
        for row, pair in enumerate(pairs)
        for order in Order
        for vote in range(num_votes)
    ]
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def answers_after(num_refusals: int) -> Answer:
    return lambda right, vote: REFUSAL if vote < num_refusals else f"<answer>{right}</answer>"


@pytest.mark.slow
def test_a_judge_that_refuses_four_times_of_five(folder: Path, demo_pairs: Any) -> None:
    """It is right in the fifth. Not one trial is decided: in the report, on the page, for --require, at the gate and beside
    others; and every sentence that says "count as wrong" says what is so."""
    pairs = demo_pairs[0][:120]
    for name, answer in {
        "sure": answers_after(0),
        "refuses": answers_after(4),
        "wrong": lambda right, vote: f"<answer>{3 - right if vote < 4 else right}</answer>",
    }.items():
        judge = f"replay:{record(folder, pairs, name, answer)}"
        how = ["--data", folder / "pairs.parquet", "--judge", judge, "--votes", NUM_VOTES, "--out", folder / name]
        done = run_main(main, "bench", "run", "pairs", *how, "--require", "accuracy.micro>=0.9")
        assert done.returncode == int(name != "sure"), done.stdout
        assert ("undecided 0.0 %" if name == "sure" else "undecided 100.0 %") in done.stdout or name == "wrong"
    report, values = read_run(folder / "refuses").report, json.loads((folder / "refuses" / "report.json").read_text())
    assert (values["accuracy"]["micro"], values["undecided_rate"], values["invalid_rate"]) == (0.0, 1.0, 0.8)
    assert (values["valid_majority"]["accuracy"], values["valid_majority"]["decided"]) == (1.0, 1.0)
    assert (values["decision"]["accuracy"], values["one_vote"]["accuracy"]) == (0.0, pytest.approx(0.2))
    assert (values["pairs_without_majority"], values["pairs_without_valid_vote"]) == (120, 0)
    assert [one.is_met for one in report.requirements] == [False]

    page = (folder / "refuses" / "report.html").read_text()
    headline = re.search(r'class="headline"><b>([\d.]+) %</b>', page)
    assert headline is not None
    assert headline[1] == "0.0"
    assert "more than half of the votes asked (100.0 % undecided)" in page
    assert 'majority of the valid votes alone (decides 100.0 % of trials)</td><td class="num">100.0 [' in page
    assert "80.0 % have no verdict and count as wrong" in page
    wrong = read_run(folder / "wrong")
    assert wrong.report.scores.accuracy == report.scores.accuracy
    assert [row.score for row in wrong.rows] == [row.score for row in read_run(folder / "refuses").rows]

    gate = run_main(main, "bench", "gate", folder / "sure", folder / "refuses")
    assert gate.returncode == 1
    assert "accuracy: -100.0 points" in gate.stdout
    assert "invalid_rate: +80.0 points" in gate.stdout
    compared = run_main(main, "bench", "compare", folder / "sure", folder / "refuses")
    assert compared.returncode == 0
    columns, rows = leaderboard([read_run(folder / "sure"), read_run(folder / "refuses")])
    cells = [dict(zip(columns, row, strict=True)) for row in rows[:2]]
    assert [cell["accuracy"].split()[0] for cell in cells] == ["100.0", "0.0"]
    assert [cell["one vote"].split()[0] for cell in cells] == ["100.0", "20.0"]
    assert "decided by more than half of the votes asked; failures count as wrong" in NOTES


@pytest.mark.slow
def test_the_gate_sees_a_judge_that_refuses_more(folder: Path, demo_pairs: Any) -> None:
    """Two refusals of five cost no accuracy; they do not pass unless that is asked for, and fewer of them do."""
    pairs = demo_pairs[0][:120]
    for name, num in {"always": 0, "mostly": 2}.items():
        judge = f"replay:{record(folder, pairs, name, answers_after(num))}"
        run_bench(bench_settings("pairs", folder / "pairs.parquet", judge), folder / name)
    assert read_run(folder / "mostly").report.scores.accuracy.micro == 1.0
    refused = run_main(main, "bench", "gate", folder / "always", folder / "mostly")
    assert refused.returncode == 1
    assert re.search(r"invalid_rate: \+40\.0 points \[.*\], p < 0\.001: worse, beyond noise", refused.stdout)
    allowed = run_main(main, "bench", "gate", folder / "always", folder / "mostly", "--allow-more-invalid")
    assert (allowed.returncode, "invalid_rate" in allowed.stdout) == (0, False)
    assert run_main(main, "bench", "gate", folder / "mostly", folder / "always").returncode == 0
    asked = run_main(main, "bench", "gate", folder / "always", folder / "mostly", "--figure", "invalid_rate")
    assert (asked.returncode, asked.stdout.count("invalid_rate:")) == (1, 1)


def test_with_one_vote_nothing_is_undecided_but_what_has_no_verdict(folder: Path, demo_pairs: Any) -> None:
    """Of one vote in each order both rules give one accuracy, as recorded; no sentence speaks of majorities."""
    pairs, dice = demo_pairs[0][:120], random.Random(3)
    texts = [f"<answer>{place}</answer>" for place in (1, 2)]
    replay = record(folder, pairs, "one", lambda right, vote: dice.choice([*texts, texts[right - 1], REFUSAL]), 1)
    report, _ = run_bench(bench_settings("pairs", folder / "pairs.parquet", f"replay:{replay}"), folder / "one")
    right_orders = [0] * len(pairs)
    for line in map(json.loads, replay.read_text().splitlines()):
        better = 1 + ((pairs[line["row"]].preferred == 1) != (line["order"] == "swapped"))
        right_orders[line["row"]] += line["text"] == texts[better - 1]
    scores = report.scores
    assert (
        scores.accuracy.micro
        == scores.valid_majority.accuracy
        == scores.one_vote.accuracy
        == pytest.approx(sum(right_orders) / 240)
    )
    assert scores.undecided_rate == pytest.approx(scores.invalid_rate)
    assert scores.invalid_rate == pytest.approx(1 - scores.valid_majority.decided)
    assert scores.decision is not None
    assert scores.decision.accuracy == pytest.approx(right_orders.count(2) / 120)
    assert f"right in both orders: {100 * scores.decision.accuracy:.1f} %" in headline_sentence(report)
    text = report_markdown(report)
    assert "undecided" not in text
    assert "valid votes" not in text


@pytest.fixture(scope="module")
def blind(folder: Path) -> tuple[Report, Path]:
    """A judge that has no verdict in three of five answers, is right in most of the others, and never looks."""

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        dice = random.Random(f"{prompt[0].text} {draw}")
        return format_verdict(dice.choice(["first", "second"]), "x") if dice.random() < 0.4 else REFUSAL  # type: ignore[arg-type]

    patch = pytest.MonkeyPatch()
    patch.setattr(runner, "open_any_judge", lambda _: GenerativeJudge(ScriptedSampler(handler), load_template("plain")))
    report, _ = run_bench(bench_settings("pairs", folder / "pairs.parquet", "hf:x", votes=3, temperature=1.0), folder / "blind")
    patch.undo()
    return report, folder / "blind"


def test_no_finding_is_switched_off_by_answers_without_a_verdict(blind: tuple[Report, Path]) -> None:
    """More than half have none: that it is not shown to look, and cannot be told from guessing, is said all the same."""
    report, _ = blind
    assert 0.5 < report.scores.invalid_rate < 1
    found = [key_phrase(finding) for finding in report.findings]
    assert "Invalid answers" in found
    assert "Not shown to look at the image" in found
    assert {"Worse than guessing", "Cannot be told from guessing"} & set(found)


def test_a_control_of_one_vote_stands_beside_one_vote(blind: tuple[Report, Path]) -> None:
    """In the headline, the tables, the difference and beside other runs; the accuracy of three votes is another figure."""
    report, out = blind
    single, without = report.scores.one_vote.accuracy, report.controls["blank"]
    assert report.scores.k_curve[0].accuracy == pytest.approx(single)
    assert without.difference is not None
    assert without.difference.difference == pytest.approx(single - without.accuracy.micro)
    beside = f"one vote: {100 * single:.1f} %, with a blank image {100 * without.accuracy.micro:.1f} %"
    assert headline_sentence(report).endswith(beside)
    lines = report_markdown(report).splitlines()
    [place] = [n for n, line in enumerate(lines) if line.startswith("| the judge, one vote |")]
    assert lines[place].startswith(f"| the judge, one vote | {100 * single:.1f} [")
    assert lines[place + 1].startswith("| text-only (blank image) |")
    columns, rows = leaderboard([read_run(out)])
    assert columns.index("text-only") == columns.index("one vote") + 1
    assert rows[0][columns.index("one vote")].startswith(f"{100 * single:.1f} [")
    assert f"| {100 * single:.1f} [" in suite_markdown("suite", {"pairs": report})
