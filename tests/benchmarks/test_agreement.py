"""A run's judge against people: labels from ratings, figures by hand, the benchmark's own raters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.benchmarks.agreement import (
    RATERS,
    RatedPair,
    agreement_rows,
    agreement_scores,
    agreement_sentence,
    rater_rows,
)
from rewardlab.benchmarks.comparison import add_agreement, read_run
from rewardlab.benchmarks.mmrb2 import load_mmrb2
from rewardlab.benchmarks.requirements import check_report, parse_requirement
from rewardlab.benchmarks.robustness.run import run_robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.judgments import read_judged
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import DifferenceEstimate
from rewardlab.reporting.tables import markdown_table
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Rating, Verdict, VerdictStatus, Vote, choice_of
from tests.conftest import SHARED_DATA

CHOICES: dict[str, list[Any]] = {  # by pair: those of ann, bob and cem
    "p0": [0, 0, 0],
    "p1": [0, 0, 1],
    "p2": [1, 1, 1],
    "p3": [1, 0, "tie"],  # a tie: as many say 1 as 0
    "p4": [1, "skip", "skip"],
}


def write(folder: Path, choices: dict[str, list[Any]] = CHOICES) -> tuple[Path, Path, str]:
    """Pairs without labels, ratings of all but the last, and a judge that names response 0 in both orders."""
    names = [*choices, "unrated"]
    pairs = [{"pair_id": name, "question": f"{name}?", "responses": [f"longer {name}", f"b {name}"]} for name in names]
    labels = [
        {"pair_id": name, "rater": rater, "choice": choice, "shown": "given"}
        for name, of_pair in choices.items()
        for rater, choice in zip(("ann", "bob", "cem"), of_pair, strict=True)
    ]
    samples = [
        {"row": n, "order": order, "text": f"<answer>{says}</answer>"}
        for n in range(len(names))
        for order, says in (("given", 1), ("swapped", 2))
    ]
    for name, lines in (("pairs", pairs), ("labels", labels), ("samples", samples)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "pairs.jsonl", folder / "labels.jsonl", f"replay:{folder / 'samples.jsonl'}"


def test_ratings_are_labels_and_are_compared(tmp_path: Path) -> None:
    """Two of four rated pairs with a better response are right. Of 12 ratings of several people 9 equal the label of their
    pair; one rating alone is its own label."""
    data, labels, judge = write(tmp_path)
    report, _ = run_bench(bench_settings("pairs", data, judge, controls=(), labels=labels), tmp_path / "run")
    assert (report.scores.num_pairs, report.scores.accuracy.micro) == (4, 0.5)
    assert report.ties is not None
    assert report.ties.num_ties == 1
    assert any("1 of 6 pairs have neither a label nor a rating" in note for note in report.notes)
    scores = report.agreement
    assert scores is not None
    assert (scores.num_pairs, scores.num_ratings, scores.num_raters) == (5, 13, 3)
    assert scores.person is not None
    assert scores.person.accuracy == pytest.approx((3 + 2 + 3 + 1) / 12)
    assert scores.judge.accuracy == pytest.approx(2 / 5)
    assert scores.others is not None
    assert scores.others.accuracy == pytest.approx((3 + 1 + 3 + 0) / 12)  # of p1 two agree with one of two others each
    assert scores.judge_with_one.accuracy == pytest.approx((3 + 2 + 0 + 1 + 0) / 13)
    assert (scores.groups["unanimous"].n, scores.groups["unanimous"].judge.accuracy) == (2, 0.5)
    assert (scores.groups["divided"].n, scores.groups["divided"].judge.accuracy, scores.groups["divided"].person) == (
        2,
        0.5,
        None,
    )
    assert scores.length_bias is not None
    assert scores.length_bias.difference == pytest.approx((0 + 1 / 3 + 1 + 1 / 2 + 1) / 5)
    assert scores.place_bias is not None  # the judge names either place in half of the orders
    assert scores.place_bias.difference == pytest.approx((-0.5 - 1 / 6 + 0.5 + 0 + 0.5) / 5)
    assert scores.winning_rate is None  # of five pairs
    shorter = replace(report, agreement=replace(scores, length_bias=DifferenceEstimate(-0.3, (-0.4, -0.2))))
    assert not check_report(shorter, parse_requirement("agreement.length_bias.difference<=0.05")).is_met
    assert read_run(tmp_path / "run").report == report


def test_one_rater_alone_is_no_ceiling(tmp_path: Path) -> None:
    data, labels, judge = write(tmp_path, {f"p{n}": [n % 2, "skip", "skip"] for n in range(4)})
    report, _ = run_bench(bench_settings("pairs", data, judge, controls=(), labels=labels), tmp_path / "run")
    assert report.agreement is not None
    assert (report.agreement.person, report.agreement.judge.accuracy) == (None, 0.5)
    assert "no pair has two, so that people cannot be compared with each other" in agreement_sentence(report.agreement)
    assert agreement_rows(report.agreement)[0][1] == "–"
    assert read_run(tmp_path / "run").report == report


def test_agree_gives_what_the_run_gives(tmp_path: Path) -> None:
    """From the folder alone: a run on labelled pairs, and the ratings of a file."""
    data, labels, judge = write(tmp_path)
    with_labels, _ = run_bench(bench_settings("pairs", data, judge, controls=(), labels=labels), tmp_path / "run")
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line, preferred in zip(lines, [0, 0, 1, "tie", 1, 0], strict=True):
        line["preferred"] = preferred
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_bench(bench_settings("pairs", labelled, judge, controls=()), tmp_path / "plain")
    with pytest.raises(DataError, match="its data has no ratings; give them with --labels FILE"):
        add_agreement(tmp_path / "plain", None, epsilon=0.1)
    result = CliRunner().invoke(app, ["agree", str(tmp_path / "plain"), "--labels", str(labels), "--json"])
    assert result.exit_code == 0
    stored = read_run(tmp_path / "plain").report.agreement
    assert stored == with_labels.agreement
    assert json.loads(result.stdout)["num_ratings"] == 13
    assert "13 ratings by 3 people of 5 pairs" in (tmp_path / "plain" / "report.md").read_text()
    failing = ["agree", str(tmp_path / "plain"), "--require", "agreement.judge.accuracy>=0.5"]
    assert CliRunner().invoke(app, failing).exit_code == 1
    (tmp_path / "other.jsonl").write_text('{"pair_id": "q", "rater": "ann", "choice": 0}\n')
    with pytest.raises(DataError, match="none of its 1 pairs is among the 6 judged ones; the first is 'q'"):
        add_agreement(tmp_path / "plain", tmp_path / "other.jsonl", epsilon=0.1)
    with pytest.raises(ConfigError, match=r"has an epsilon of 0\.1; another needs --labels FILE"):
        add_agreement(tmp_path / "plain", None, epsilon=0.2)
    result = add_agreement(tmp_path / "plain", labels, epsilon=0.2)
    assert result.agreement is not None
    assert (result.agreement.epsilon, add_agreement(tmp_path / "plain", None)) == (0.2, result)


def test_agree_tells_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ratings of other pairs are counted; ids of several pairs, a failed run, one under attack and lost votes are refused."""
    data, labels, judge = write(tmp_path)
    run = tmp_path / "run"
    report, _ = run_bench(bench_settings("pairs", data, judge, controls=(), labels=labels), run)
    more = tmp_path / "more.jsonl"
    more.write_text(labels.read_text() + '{"pair_id": "q", "rater": "ann", "choice": 0}\n')
    add_agreement(run, more)
    notes = capsys.readouterr().err
    assert "ratings of 1 pairs that were not judged are left out" in notes
    assert "replaces the agreement with 13 ratings that its report had" in notes
    votes = (run / "votes.jsonl").read_text().splitlines(keepends=True)
    (run / "votes.jsonl").write_text("".join(votes[:-1]))
    with pytest.raises(DataError, match=r"has no votes of row 4, which scores\.jsonl has"):
        add_agreement(run, labels)
    scores = [json.loads(line) | {"pair_id": "p0"} for line in (run / "scores.jsonl").read_text().splitlines()]
    (run / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scores))
    with pytest.raises(DataError, match="labels pair 'p0', and 5 judged pairs have that id"):
        add_agreement(run, labels)
    (run / "report.json").write_text(json.dumps(replace(report, failure="HTTP 500").to_json()))
    with pytest.raises(DataError, match=r"the run failed \(HTTP 500\)"):
        add_agreement(run, labels)


def test_people_have_not_seen_attacked_pairs(tmp_path: Path) -> None:
    data, labels, _ = write(tmp_path)
    settings = bench_settings("pairs", data, "baseline:first", controls=(), labels=labels)
    report, _ = run_robustness(settings, tmp_path / "attacked", num_pairs=4)
    assert report.agreement is None
    with pytest.raises(ConfigError, match="a run under attack"):
        add_agreement(tmp_path / "attacked", labels)
    required = replace(settings, requirements=(parse_requirement("agreement.judge.accuracy>=0.5"),))
    with pytest.raises(ConfigError, match="needs people's ratings of these pairs"):
        run_robustness(required, tmp_path / "required", num_pairs=4)


def test_what_needs_ratings_says_so(tmp_path: Path) -> None:
    data, _, judge = write(tmp_path)
    settings = bench_settings("pairs", data, judge, controls=(), labels=tmp_path / "labels.jsonl")
    with pytest.raises(DataError, match="row 0: has no label"):
        run_bench(bench_settings("pairs", data, judge, controls=()), tmp_path / "run")
    required = (parse_requirement("agreement.advantage>=0.5"),)
    (tmp_path / "p.jsonl").write_text('{"question": "q", "responses": ["a", "b"], "preferred": 0}\n')
    with pytest.raises(ConfigError, match="needs people's ratings"):
        run_bench(
            bench_settings("pairs", tmp_path / "p.jsonl", "baseline:first", controls=(), requirements=required), tmp_path / "r"
        )
    (tmp_path / "labels.jsonl").write_text('{"pair_id": "p0", "rater": "ann", "choice": "skip"}\n')
    with pytest.raises(DataError, match="no pair has a label"):
        run_bench(settings, tmp_path / "run")


def votes(names: tuple[int | None, int | None]) -> list[Vote]:
    verdicts = [
        Verdict(choice_of(one, order), VerdictStatus.OK) if one is not None else Verdict(None, VerdictStatus.EMPTY)
        for one, order in zip(names, BOTH_ORDERS, strict=True)
    ]
    return [
        Vote(order, verdict, Completion("", FinishReason.STOP)) for order, verdict in zip(BOTH_ORDERS, verdicts, strict=True)
    ]


def test_an_order_without_an_answer_agrees_with_nobody() -> None:
    ratings = [Rating("ann", 1), Rating("bob", 1)]
    pairs = [
        RatedPair(n, "g", str(n), votes(names), ratings) for n, names in enumerate([(1, 1), (1, None), (None, None), (0, 0)])
    ]
    scores = agreement_scores(pairs)
    assert scores is not None
    assert scores.judge.accuracy == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    assert agreement_scores([RatedPair(0, "g", "c", votes((1, 1)), [Rating("ann", None)])]) is None


def test_agreement_by_confidence() -> None:
    """Thirds of pairs whose votes are even, even in one order, and all for response 1, as nine people of ten say."""
    sides = [votes((1, 0)), [*votes((1, 1)), *votes((1, 0))], votes((1, 1))]
    pairs = [RatedPair(n, "g", str(n), sides[n % 3], [Rating("ann", int(n // 3 % 10 > 0))]) for n in range(30)]
    scores = agreement_scores(pairs)
    assert scores is not None
    thirds = {name: (group.n, group.judge.accuracy) for name, group in scores.groups.items() if name != "g"}
    assert thirds == {
        f"confidence, {name} third": (10, right) for name, right in (("lowest", 0.5), ("middle", 0.45), ("highest", 0.9))
    }
    for few in (pairs[:29], [replace(pair, votes=sides[0]) for pair in pairs]):
        scores = agreement_scores(few)
        assert scores is not None
        assert [*scores.groups] == ["g"]


def test_a_rater_of_someone_elses_file_commands_no_terminal() -> None:
    names = ("\x1b]0;owned\x07ann", "bob|\r\n# bob")
    ratings = [Rating(name, 1) for name in names]
    scores = agreement_scores([RatedPair(n, "g", str(n), votes((1, 1)), ratings) for n in range(3)])
    assert scores is not None
    first, second = markdown_table(RATERS, rater_rows(scores))[2:]
    assert first.startswith("|  ]0;owned ann | 3 |")
    assert second.startswith("| bob\\|  # bob | 3 |")


MMRB2 = SHARED_DATA / "mmrb2"


@pytest.mark.skipif(not MMRB2.is_dir(), reason="the files of Multimodal RewardBench 2 are not there")
def test_the_raters_of_mmrb2() -> None:
    """One person agrees with the label of all three in 93 to 94 %, two people with each other in 86 to 88 %."""
    rows = load_mmrb2(MMRB2, images=None, with_images=False)
    rated = [RatedPair(row.row, row.group, row.cluster, votes((row.pair.preferred,) * 2), row.pair.ratings) for row in rows]
    people = {}
    for name in ("t2i", "edit", "interleaved"):
        scores = agreement_scores([pair for pair in rated if pair.group == name])
        assert scores is not None
        assert scores.others is not None
        assert scores.alpha is not None
        assert scores.person is not None
        assert (scores.num_pairs, scores.judge.accuracy, scores.winning_rate) == (1000, 1.0, 1.0)
        people[name] = [round(100 * value, 1) for value in (scores.person.accuracy, scores.others.accuracy, scores.alpha)]
    assert people == {"t2i": [93.0, 85.9, 71.8], "edit": [93.5, 86.9, 73.7], "interleaved": [94.1, 88.2, 76.0]}
    assert not any(row.pair.ratings for row in rows if row.group == "reasoning")


def test_votes_of_a_run_with_labels_are_read_with_their_pairs(tmp_path: Path) -> None:
    """Labels make ties and leave pairs out, of which the file of pairs says nothing; its images are those of the run."""
    data, labels, judge = write(tmp_path)
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for n, line in enumerate(lines):
        line["response_images"], line["responses"] = [[f"{n}.png"], []], [f"\ufffc a {n}", f"b {n}"]
        Image.new("RGB", (8, 8), (n, 0, 0)).save(tmp_path / f"{n}.png")
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_bench(bench_settings("pairs", data, judge, controls=(), labels=labels), tmp_path / "run")
    assert [judged.has_votes for judged in read_judged(tmp_path / "run", data)] == [True, True, True, False, True, False]
    Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / "2.png")
    with pytest.raises(DataError, match="belong to other images"):
        list(read_judged(tmp_path / "run", data))
