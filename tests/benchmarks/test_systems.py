"""Win rates of systems: by hand, corrected where few pairs have a label, and the run that judges pairs without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.comparison import add_agreement, read_run
from rewardlab.benchmarks.leaderboard import leaderboard_markdown
from rewardlab.benchmarks.mmrb2 import load_mmrb2
from rewardlab.benchmarks.report import report_markdown, systems_sentence, write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.requirements import parse_requirement
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.benchmarks.systems import SystemScores, system_scores
from rewardlab.cli import app
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import mean_estimate
from rewardlab.metrics.prediction_powered import corrected_mean, corrected_score
from rewardlab.types import Judgment, Outcome, PreferencePair, Tie
from tests.conftest import SHARED_DATA
from tests.support.openai_server import ChatServer, chat_server

NAMES = ("north", "south", "west")


def scored(*pairs: tuple[tuple[str, str], int | Tie | None, float | None]) -> SystemScores | None:
    """Return the scores of pairs, each of (systems, label, the judge's share for response 0)."""
    rows, judgments = [], []
    for n, (systems, label, share) in enumerate(pairs):
        preferred, tie = (None, label) if isinstance(label, Tie) else (label, None)
        pair = PreferencePair(str(n), "q?", ("a", "b"), preferred, tie=tie, systems=systems)
        rows.append(Row(n, pair, "all", str(n), {}))
        judgments.append(Judgment(str(n), (), Outcome.TIE, share))
    return system_scores(rows, judgments)


def test_win_rates_by_hand() -> None:
    """A tie and a pair without a verdict are half a win; pairs of one system, or of unknown ones, do not count; of few labels
    there is no correction."""
    scores = scored(
        (("north", "south"), 0, 0.75),
        (("south", "north"), 0, 0.25),
        (("north", "south"), Tie.TIE, None),
        (("west", "south"), None, 1.0),
        (("west", "west"), 0, 1.0),
        (("", ""), 0, 1.0),
    )
    assert scores is not None
    assert (scores.num_pairs, scores.num_labelled, scores.num_unnamed, scores.accuracy) == (4, 3, 1, None)
    north, south, west = (scores.win_rates[name] for name in NAMES)
    assert north.judge_only.accuracy == pytest.approx((0.75 + 0.75 + 0.5) / 3)
    assert north.label_only == north.corrected == mean_estimate([1.0, 0.0, 0.5])
    assert (south.num_pairs, south.num_labelled, south.judge_only.accuracy) == (4, 3, pytest.approx((0.25 + 0.25 + 0.5) / 4))
    assert (south.corrected, west.label_only, west.corrected) == (None, None, None)
    assert next(iter(scores.win_rates)) == "north"
    assert list(scores.pairs) == ["north over south", "south over west"]
    assert scores.pairs["south over west"].judge_only.accuracy == 0.0
    assert scored((("", "north"), 0, 1.0)) is None


def test_labels_of_unsure_pairs_are_noticed() -> None:
    """A random half of the pairs is no reason to doubt; the half that the judge is unsure of is one."""
    pairs = [(("north", "south"), n % 2, 0.5 + 0.05 * (n % 9)) for n in range(80)]
    for is_labelled, is_doubtful in ((lambda n: n % 2 == 0, False), (lambda n: pairs[n][2] < 0.7, True)):
        scores = scored(*((systems, best if is_labelled(n) else None, share) for n, (systems, best, share) in enumerate(pairs)))
        assert scores is not None
        assert scores.is_doubtful is is_doubtful
        assert ("hardly a random sample" in systems_sentence(scores)) is is_doubtful


def test_corrected_scores_are_those_of_the_estimator() -> None:
    """By prompts; the labels that are still missing are counted from those that are there."""
    dice = np.random.default_rng(0)
    people, judged = dice.integers(0, 2, 60).astype(float), dice.random(300)
    prompts = [str(n // 2) for n in range(300)]
    scores = [(float(people[n]) if n < 60 else None, float(judged[n]), prompts[n]) for n in range(300)]
    mean, ours = corrected_mean(people, judged[:60], judged[60:], prompts[:60], prompts[60:]), corrected_score(scores)
    assert (ours.corrected, ours.saved, ours.label_only) == (mean.corrected, mean.saved, mean.label_only)
    assert ours.judge_only.accuracy == pytest.approx(mean.judge_only.accuracy)
    assert ours.labels_more == (mean.labels_for(0.05) or 0) - 60
    assert corrected_score([(1.0, 0.5, str(n)) for n in range(9)] + [(None, 0.5, "x")]).labels_more is None


def write(folder: Path, num: int, labelled: set[int]) -> tuple[Path, Path, str]:
    """Write pairs of three systems, labels of some by people, who prefer the one first in the alphabet, and a judge that is
    right in three of four."""
    folder.mkdir(exist_ok=True)
    pairs, samples, labels = [], [], []
    for n in range(num):
        systems = [NAMES[n % 3], NAMES[(n + 1 + n // 3 % 2) % 3]]
        best = int(systems[1] < systems[0])
        pairs.append({"question": f"{n}?", "responses": [f"a {n}", f"b {n}"], "preferred": None, "systems": systems})
        says = 1 - best if n % 4 == 3 else best
        samples += [
            {"row": n, "order": order, "text": f"<answer>{1 + (says ^ turned)}</answer>"}
            for turned, order in enumerate(("given", "swapped"))
        ]
        if n in labelled:
            labels.append({"pair_id": f"row-{n}", "rater": "ann", "choice": "tie" if n % 20 == 19 else best})
    for name, lines in (("p", pairs), ("s", samples), ("l", labels)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "p.jsonl", folder / "l.jsonl", f"replay:{folder / 's.jsonl'}"


def run(data: Path, labels: Path | None, judge: str, out: Path, **changes: Any) -> Report:
    report, rows = run_bench(bench_settings("pairs", data, judge, controls=(), labels=labels, **changes), out)
    write_reports(report, rows, out)
    return report


def test_pairs_without_a_label_are_judged(tmp_path: Path) -> None:
    """They are in the win rates alone: all other scores are those of the labelled pairs. The page, the Markdown and a check of
    the run have them."""
    data, labels, judge = write(tmp_path, 120, set(range(0, 120, 3)) - {39, 99})
    report = run(data, labels, judge, tmp_path / "run")
    assert report.systems is not None
    assert (report.systems.num_pairs, report.systems.num_labelled, report.scores.num_pairs) == (120, 38, 38)
    north = report.systems.win_rates["north"]
    assert north.corrected is not None
    assert north.label_only is not None
    assert north.label_only.accuracy == 1.0
    pairs = [n for n, line in enumerate(data.read_text().splitlines()) if "north" in json.loads(line)["systems"]]
    assert north.judge_only.accuracy == pytest.approx(sum(n % 4 != 3 for n in pairs) / len(pairs))
    assert report.systems.accuracy is not None
    assert report.systems.accuracy.label_only == mean_estimate(
        [float(n % 4 != 3) for n in range(0, 120, 3) if n not in (39, 99)]
    )
    assert read_run(tmp_path / "run").report.systems == report.systems
    for text in (report_markdown(report), (tmp_path / "run" / "report.html").read_text()):
        assert "38 of 120 pairs of 3 systems have a label" in text
        assert "north over south" in text
    checked = CliRunner().invoke(app, ["bench", "check", str(tmp_path / "run")])
    assert checked.exit_code == 0, checked.output
    lines = (tmp_path / "run" / "votes.jsonl").read_text().splitlines()
    (tmp_path / "run" / "votes.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert CliRunner().invoke(app, ["bench", "check", str(tmp_path / "run")]).exit_code == 1


def test_more_labels_ask_nothing_again(tmp_path: Path) -> None:
    """Labels may also make ties; the run is scored anew from its log, as a run with all labels from the start."""
    first, more = set(range(0, 120, 3)), set(range(0, 120, 2))
    data, labels, judge = write(tmp_path, 120, first)
    run(data, labels, judge, tmp_path / "run")
    log = (tmp_path / "run" / "votes.jsonl").read_text()
    _, labels, _ = write(tmp_path, 120, first | more)
    again = run(data, labels, judge, tmp_path / "run")
    assert (tmp_path / "run" / "votes.jsonl").read_text() == log
    fresh = run(data, labels, judge, tmp_path / "fresh")
    assert again.ties is not None
    assert (again.systems, again.ties, again.scores) == (fresh.systems, fresh.ties, fresh.scores)
    for command in (["bench", "check"], ["agree"]):
        done = CliRunner().invoke(app, [*command, str(tmp_path / "run")])
        assert done.exit_code == 0, done.output
    with pytest.raises(ConfigError, match="run its `bench run` command again with --labels"):
        add_agreement(tmp_path / "run", labels)


@pytest.mark.parametrize("how", [{"votes": 1}, {"votes": 3, "stop_error": 0.05}], ids=["all votes", "in turns"])
def test_an_endpoint_is_asked_once_and_sees_no_names(how: dict[str, Any], tmp_path: Path) -> None:
    """Labels that come later, ties among them, ask for nothing; requests do not name the systems."""
    data, labels, _ = write(tmp_path, 24, set(range(0, 24, 3)))
    with chat_server(server := ChatServer(by_seed=True)) as url:
        first = run(data, labels, f"openai:m@{url}", tmp_path / "run", **how)
        asked = len(server.bodies)
        _, labels, _ = write(tmp_path, 24, set(range(20)))
        second = run(data, labels, f"openai:m@{url}", tmp_path / "run", **how)
        assert len(server.bodies) == asked
    assert not any(name in json.dumps(server.bodies) for name in NAMES)
    assert first.systems is not None
    assert second.systems is not None
    assert second.systems.num_labelled == 20
    assert second.ties is not None
    assert {name: rate.judge_only for name, rate in first.systems.win_rates.items()} == {
        name: rate.judge_only for name, rate in second.systems.win_rates.items()
    }


def test_required(tmp_path: Path) -> None:
    data, labels, judge = write(tmp_path, 60, set(range(30)))
    required = (parse_requirement("systems.win_rates.north.corrected.interval.low>=0.5"),)
    assert run(data, labels, judge, tmp_path / "run", requirements=required).requirements[0].is_met
    with pytest.raises(ConfigError, match="the data has no system 'nort'; did you mean 'north'"):
        run(data, labels, judge, tmp_path / "other", requirements=(parse_requirement("systems.win_rates.nort.saved>=0"),))
    plain = [{"question": f"{n}?", "responses": ["a", "b"], "preferred": 0} for n in range(4)]
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    with pytest.raises(ConfigError, match="needs pairs that name the two systems"):
        run(tmp_path / "plain.jsonl", None, "baseline:first", tmp_path / "plain", requirements=required)


def test_some_pairs_need_a_label(tmp_path: Path) -> None:
    data, _, judge = write(tmp_path, 6, {0})
    with pytest.raises(DataError, match="no pair has a label"):
        run(data, None, judge, tmp_path / "run")


def test_runs_are_compared_by_one_table(tmp_path: Path) -> None:
    data, labels, judge = write(tmp_path, 60, set(range(30)))
    for name, spec in (("one", judge), ("two", "baseline:first")):
        run(data, labels, spec, tmp_path / name)
    runs = [read_run(tmp_path / name) for name in ("one", "two")]
    text = leaderboard_markdown(runs)
    assert "Win rates of systems" in text
    assert [line.split("|")[1:3] for line in text.splitlines() if line.startswith(("| north |", "| west |"))] == [
        [" north ", " one "],
        [" north ", " two "],
        [" west ", " one "],
        [" west ", " two "],
    ]


@pytest.mark.skipif(not (SHARED_DATA / "mmrb2").is_dir(), reason="the files of Multimodal RewardBench 2 are not there")
def test_the_systems_of_mmrb2() -> None:
    """All pairs have a label; pairs of one model compare no systems, and people's win rates are those of the labels."""
    rows = load_mmrb2(SHARED_DATA / "mmrb2" / "t2i_response_only.json", images=None, with_images=False)
    scores = system_scores(rows, [Judgment(row.pair.pair_id, (), Outcome.TIE, None) for row in rows])
    assert scores is not None
    assert (scores.num_pairs, scores.num_labelled, len(scores.win_rates), len(scores.pairs)) == (427, 427, 8, 28)
    wins = sum(row.pair.systems[row.pair.preferred or 0] == "imagen4-ultra" for row in rows if len(set(row.pair.systems)) == 2)
    best = scores.win_rates["imagen4-ultra"]
    assert best.corrected is not None
    assert best.corrected.accuracy == pytest.approx(wins / best.num_pairs)
