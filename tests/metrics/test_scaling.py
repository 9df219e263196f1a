"""What more votes buy: exact curves against enumeration, stopping while asking, re-reading recorded votes, confidence."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks import runner
from rewardlab.benchmarks.arithmetic import addition, problems
from rewardlab.benchmarks.report_model import Confidence, Report, RowScore
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.scores import confidence_report, decision, k_curve
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.files import read_lines
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.calibration import RiskPoint
from rewardlab.metrics.intervals import AccuracyEstimate
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Choice, Message, Order, choice_of
from rewardlab.verdicts.parse import format_verdict
from tests.support.labeled import labeled


def accuracy_of(estimate: AccuracyEstimate | None) -> float:
    assert estimate is not None
    return estimate.accuracy


def test_curve_of_both_orders() -> None:
    """A judge that always says "first" is right in half of its trials and decides no pair; one order has no balanced curve."""
    always = [labeled("111", "111"), labeled("111", "111", preferred=1)]
    cells = k_curve(always, ["a", "b"], 3)
    assert [(c.k, c.accuracy, c.balanced.accuracy, c.weighted) for c in cells if c.balanced] == [
        (1, 0.5, 0, None),
        (3, 0.5, 0, None),
    ]
    assert k_curve([labeled("111")], ["a"], 3)[0].balanced is None
    assert accuracy_of(decision(always, ["a", "b"])) == 0
    assert accuracy_of(decision([labeled("1", "2"), labeled("1", "2", preferred=1)], ["a", "b"])) == 0.5
    assert decision([labeled("1")], ["a"]) is None


def test_confidence_by_hand() -> None:
    """Three named pairs: two at share 1 (one right), one at 3/4 (right); an even pair and one without votes are undecided."""
    sure, even, unread = labeled("1111", "2222"), labeled("111", "111"), labeled("---", "---")
    items = [sure, labeled("1111", "2222", preferred=1), labeled("1111", "2121"), even, unread]
    confidence = confidence_report(items, list("abcde"))["vote_share"]
    assert confidence.calibration is not None
    calibration = confidence.calibration
    assert (confidence.num_pairs, confidence.undecided) == (5, 2)
    assert calibration.mean_confidence == pytest.approx(2.75 / 3)
    assert calibration.accuracy == pytest.approx(2 / 3)
    assert calibration.ece == pytest.approx((2 * 0.5 + 0.25) / 3)  # |1 - 1/2| of two, |3/4 - 1| of one
    assert calibration.brier == pytest.approx((0 + 1 + 1 / 16) / 3)
    assert calibration.risk_coverage == (RiskPoint(1.0, 0.4, 0.5), RiskPoint(0.75, 0.6, pytest.approx(1 / 3)))
    assert confidence_report([labeled("11")], ["a"]) == {}
    assert confidence_report([unread], ["a"])["vote_share"] == Confidence(1, 1, None)
    assert confidence_report([labeled("111", "22")], ["a"]) == {}  # a share of fewer than three votes is no confidence


@pytest.fixture
def data(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:70], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(out: Path, data: Path, **changes: Any) -> dict[str, Any]:
    return run_bench(bench_settings(**({"benchmark": "pairs", "data": data, "judge": "hf:x", "controls": ()} | changes)), out)[
        0
    ].to_json()


def test_asking_stops_where_it_is_settled(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that names the right response of every second pair, and the first place in the others.

    The sure pairs end after 10 of 16 votes at an error of 0 (9 settle it, and votes come in twos); the even ones are asked to
    the end. Orders take turns. No curve over K is drawn of pools that ended when they were clear. A killed run goes on.
    """
    pairs = {pair.images: (number, pair) for number, pair in enumerate(read_pairs(data))}
    asked: list[int] = []
    broken_at = 870

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        number, pair = pairs[prompt[0].images]
        asked.append(number)
        if len(asked) == broken_at:
            raise KeyboardInterrupt
        text = prompt[0].text
        shown = Order.GIVEN if text.rfind(pair.responses[0]) < text.rfind(pair.responses[1]) else Order.SWAPPED
        return format_verdict(choice_of(pair.preferred, shown) if number % 2 else Choice.FIRST, "x")

    judge = GenerativeJudge(ScriptedSampler(handler), load_template("plain"))
    monkeypatch.setattr(runner, "open_any_judge", lambda settings: judge)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "out", data, votes=8, stop_error=0.0)
    broken_at = -1
    report = bench(tmp_path / "out", data, votes=8, stop_error=0.0)
    entries = [json.loads(line) for line in read_lines(tmp_path / "out" / "votes.jsonl")[1:]]
    assert {entry["row"]: len(entry["votes"]) for entry in entries} == {row: 10 if row % 2 else 16 for row in range(70)}
    for entry in entries:
        assert [vote["order"] for vote in entry["votes"]] == ["given", "swapped"] * (len(entry["votes"]) // 2)
    assert report["num_votes_total"] == 35 * 10 + 35 * 16
    assert len(asked) - report["num_votes_total"] < 2 * 64  # one call was broken off, and what came before it is in the log
    assert (report["k_curve"], report["sequential"]) == ([], [])
    assert report["decision"]["accuracy"] == 0.5
    monkeypatch.undo()
    again = bench(tmp_path / "again", data, judge=f"replay:{tmp_path / 'out' / 'votes.jsonl'}")
    assert (again["decision"], again["k_curve"], again["statuses"]) == (report["decision"], [], report["statuses"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"votes": 1, "stop_error": 0.1}, "expected 2 votes or more"),
        ({"votes": 4, "stop_error": 0.1, "orders": "random"}, "both orders"),
        ({"votes": 4, "stop_error": 0.1, "judge": "baseline:first"}, "baseline:first has none"),
    ],
)
def test_nothing_to_stop(
    changes: dict[str, Any], told: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "judge" not in changes:
        judge = GenerativeJudge(ScriptedSampler(lambda p, n: "x"), load_template("plain"))
        monkeypatch.setattr(runner, "open_any_judge", lambda settings: judge)
    with pytest.raises(ConfigError, match=told):
        bench(tmp_path / "out", data, **changes)


def test_a_recorded_run_is_read_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """votes.jsonl as a replay file gives the same report without a model; another format reads the same texts anew."""
    dice = random.Random(0)

    def handler(prompt: tuple[Message, ...], draw: int) -> str:
        return dice.choice(["<think>a</think><answer>1</answer>", "<think>a</think><answer>2</answer> [[A]]", "nothing"])

    with monkeypatch.context() as patched:
        judge = GenerativeJudge(ScriptedSampler(handler), load_template("plain"))
        patched.setattr(runner, "open_any_judge", lambda settings: judge)
        first = bench(tmp_path / "out", data, votes=4, controls=("blank",))
    spec = f"replay:{tmp_path / 'out' / 'votes.jsonl'}"
    again = bench(tmp_path / "again", data, judge=spec)
    same = ("accuracy", "interval", "groups", "k_curve", "sequential", "statuses", "swap_consistency", "confidence", "decision")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    assert again["votes"] == 4
    assert [again[name] for name in ("temperature", "max_tokens", "verdict_format")] == [1.0, 1024, None]
    words = tmp_path / "words.txt"
    words.write_text("{question} {first} {second}")
    other = bench(tmp_path / "other", data, judge=spec, template=f"double_brackets:{words}")
    texts = [
        v["text"]
        for line in read_lines(tmp_path / "out" / "votes.jsonl")[1:]
        for v in json.loads(line)["votes"]
        if json.loads(line)["pass"] == "votes"
    ]
    assert other["statuses"]["ok"] == sum("[[A]]" in text for text in texts)
    assert other["position_bias"] == 0.5


def test_margins_of_a_replay_are_weighed(data: Path, tmp_path: Path) -> None:
    """Two weak votes against one strong one: the majority is wrong, the probabilities are right; both are reported."""
    rows = []
    for row in range(70):
        for order, sign in (("given", 1), ("swapped", -1)):
            rows += [{"row": row, "order": order, "text": "", "margin": sign * m} for m in (-0.2, -0.2, 4.0)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = bench(tmp_path / "out", data, judge=f"replay:{tmp_path / 'r.jsonl'}")
    zero_is_better = sum(pair.preferred == 0 for pair in read_pairs(data)) / 70
    cell = report["k_curve"][-1]
    assert cell["k"] == 3
    assert cell["balanced"]["accuracy"] == pytest.approx(1 - zero_is_better)
    assert cell["weighted"]["accuracy"] == pytest.approx(zero_is_better)
    assert report["decision"]["accuracy"] == pytest.approx(zero_is_better)
    told = report["confidence"]["verdict_probability"]
    margins = [(a + b) / 2 for a in (-0.2, -0.2, 4.0) for b in (-0.2, -0.2, 4.0)]
    assert told["mean_confidence"] == pytest.approx(sum(1 / (1 + math.exp(-m)) for m in margins) / 9)
    assert report["confidence"]["vote_share"]["accuracy"] == pytest.approx(1 - zero_is_better)


def test_a_report_that_was_tampered_with_does_not_add_up(data: Path, tmp_path: Path) -> None:
    """Each number that is changed is named."""
    report = bench(tmp_path / "out", data, judge="baseline:random")
    scores = [RowScore(**json.loads(line)) for line in read_lines(tmp_path / "out" / "scores.jsonl")]
    assert problems(Report.from_json(report), scores) == []
    total = sum(cell["n"] * cell["accuracy"] for cell in report["groups"].values()) / 70
    assert addition(Report.from_json(report).scores).endswith(f"/ 70 = {100 * total:.2f}")
    group = next(iter(report["groups"]))
    better = report["groups"] | {group: report["groups"][group] | {"accuracy": 0.99}}
    assert any(group in told for told in problems(Report.from_json(report | {"groups": better}), scores))
    assert any("the overall accuracy is" in told for told in problems(Report.from_json(report | {"groups": better}), scores))
    raised = report | {"accuracy": report["accuracy"] | {"macro": 0.9}}
    assert any("the macro average is" in told for told in problems(Report.from_json(raised), scores))
    assert any("there are 69 rows" in told for told in problems(Report.from_json(report), scores[1:]))
    assert any("statuses" in told for told in problems(Report.from_json(report | {"num_votes_total": 1}), scores))
