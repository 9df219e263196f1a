"""Sets with ties: labelled pairs are scored as if alone, ties have scores of their own, and runs are replayed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.browser import judgments_to_show
from rewardlab.benchmarks.comparison import figures_against, gate_runs, parse_figure, read_run
from rewardlab.benchmarks.inspect_log import inspect_log
from rewardlab.benchmarks.report import report_markdown, write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.requirements import parse_requirement
from rewardlab.benchmarks.robustness.run import run_robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.votes import TIES_PASS
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import difference_interval
from rewardlab.reporting.tables import signed, with_interval

LABELS: list[Any] = [0, 1, "tie", 0, 1, "both_bad", 0, 1, "tie", "tie"]


def write(folder: Path, labels: list[Any]) -> tuple[Path, Path]:
    """Pairs with these labels, and a judge that names response 0 in both orders, but on every second tie the first."""
    folder.mkdir(exist_ok=True)
    lines, samples = [], []
    for n, label in enumerate(labels):
        lines.append({"question": f"Question {n}?", "responses": [f"a {n}", f"b {n}"], "preferred": label})
        number = sum(isinstance(one, str) for one in labels[:n])
        flips = isinstance(label, str) and number % 2 == 1
        for order in ("given", "swapped"):
            says = 1 if order == "given" or flips else 2
            samples.append({"row": n, "order": order, "text": f"<answer>{says}</answer>"})
    (folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "s.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder / "p.jsonl", folder / "s.jsonl"


def run(data: Path, judge: str, out: Path, **changes: Any) -> Report:
    report, rows = run_bench(bench_settings("pairs", data, judge, controls=(), **changes), out)
    write_reports(report, rows, out)
    return report


def test_a_set_with_ties(tmp_path: Path) -> None:
    """Three of six labelled pairs are right, two of four ties are called so; the other scores are those of the six alone."""
    data, samples = write(tmp_path / "all", LABELS)
    report = run(data, f"replay:{samples}", tmp_path / "run")
    ties = report.ties
    assert ties is not None
    assert (ties.num_pairs, ties.num_ties, ties.num_both_bad, ties.num_unanswered) == (10, 4, 1, 0)
    assert ties.three_way.accuracy == 0.5
    assert ties.disagreement is not None
    assert (ties.disagreement.n, ties.disagreement.share) == (4, 0.5)
    few, few_samples = write(tmp_path / "few", [label for label in LABELS if isinstance(label, int)])
    alone = run(few, f"replay:{few_samples}", tmp_path / "alone")
    assert alone.scores == report.scores
    assert alone.ties is None
    stored = json.loads((tmp_path / "run" / "report.json").read_text())["ties"]
    assert (stored["num_ties"], stored["three_way"]["accuracy"]) == (4, 0.5)
    assert read_run(tmp_path / "run").report.ties == ties
    page, alone_page = ((tmp_path / name / "report.html").read_text() for name in ("run", "alone"))
    assert "ties on which the orders disagree" in page
    assert "4 of 10 pairs are ties (1 both bad)" in report_markdown(report)
    assert "pairs are ties" not in alone_page + report_markdown(alone)


def test_a_run_with_ties_is_replayed(tmp_path: Path) -> None:
    """Its votes are those of both passes; finished, it is scored again without being asked."""
    data, samples = write(tmp_path / "all", LABELS)
    report = run(data, f"replay:{samples}", tmp_path / "run")
    passes = [json.loads(line)["pass"] for line in (tmp_path / "run" / "votes.jsonl").read_text().splitlines()[1:]]
    assert (passes.count("votes"), passes.count(TIES_PASS)) == (6, 4)
    again = run(data, f"replay:{tmp_path / 'run' / 'votes.jsonl'}", tmp_path / "again")
    assert (again.ties, again.scores.accuracy) == (report.ties, report.scores.accuracy)
    assert run(data, f"replay:{samples}", tmp_path / "run").ties == report.ties


def test_ties_alone_are_no_benchmark(tmp_path: Path) -> None:
    data, samples = write(tmp_path / "all", ["tie", "both_bad"])
    with pytest.raises(DataError, match="all 2 pairs are ties; an accuracy needs pairs with a better response"):
        run(data, f"replay:{samples}", tmp_path / "run")
    with pytest.raises(DataError, match="all 2 pairs are ties"):
        run_robustness(bench_settings("pairs", data, "baseline:first", controls=()), tmp_path / "attacked", num_pairs=9)


def test_ties_are_not_attacked(tmp_path: Path) -> None:
    data, _ = write(tmp_path / "all", LABELS)
    settings = bench_settings("pairs", data, "baseline:first", controls=())
    report, _ = run_robustness(settings, tmp_path / "run", num_pairs=100)
    assert "ties left out, because an attack needs a better response: 4" in report.notes
    assert report.ties is None


@pytest.mark.parametrize("says", [1, 2])
def test_the_official_scorer_has_the_ties(tmp_path: Path, says: int) -> None:
    """GenAI-Bench counts every vote, in the order of the file."""
    votes = ["leftvote", "tievote", "rightvote", "leftvote", "bothbad_vote"]
    rows = [
        {"id": n, "prompt": f"p{n}", "video_left": "a.mp4", "video_right": "b.mp4", "vote_type": vote}
        for n, vote in enumerate(votes)
    ]
    (tmp_path / "v.json").write_text(json.dumps(rows))
    samples = [
        {"row": n, "order": order, "text": f"<answer>{says}</answer>"} for n in range(5) for order in ("given", "swapped")
    ]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    settings = bench_settings("genai_bench", tmp_path / "v.json", f"replay:{tmp_path / 's.jsonl'}", controls=())
    report, _ = run_bench(settings, tmp_path / "run")
    exported = [json.loads(line) for line in (tmp_path / "run" / "official.jsonl").read_text().splitlines()]
    assert [record["human_vote"] for record in exported] == votes
    assert report.official == (f"Accuracy: {0.4 if says == 1 else 0.2}",)
    assert report.ties is not None
    assert report.ties.three_way.accuracy == 0.4  # a judge that names a place alone calls every pair a tie


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Runs of the judge above and of one that names the response shown first, so that it calls every pair a tie."""
    data, samples = write(tmp_path / "all", LABELS)
    run(data, f"replay:{samples}", tmp_path / "old")
    run(data, "baseline:first", tmp_path / "new")
    return tmp_path / "old", tmp_path / "new"


def test_ties_are_on_the_page(tmp_path: Path) -> None:
    """Every tie, with what the judge says of it and without a right side; a set without ties shows no such filter."""
    data, samples = write(tmp_path / "all", LABELS)
    report, rows = run_bench(bench_settings("pairs", data, f"replay:{samples}", controls=()), tmp_path / "run")
    write_reports(report, rows, tmp_path / "run", all_judgments=True)
    views, totals = judgments_to_show(rows, tmp_path / "run")
    assert {view.row: (view.tie, view.kinds, view.outcome) for view in views if view.tie} == {
        2: ("tie", ["tie", "missed"], "the judge names A"),
        5: ("both bad", ["flipped", "tie"], "the judge says tie"),
        8: ("tie", ["tie", "missed"], "the judge names A"),
        9: ("tie", ["flipped", "tie"], "the judge says tie"),
    }
    assert {vote.right for view in views if view.tie for order in view.orders for vote in order.votes} == {None}
    assert (totals["tie"], totals["missed"], totals["right"], totals["wrong"]) == (4, 2, 3, 3)
    for page in (tmp_path / "run" / "report.html", tmp_path / "run" / "judgments" / "rows-0-9.html"):
        text = page.read_text()
        assert 'data-kind="tie"' in text
        assert "10 of 10 pairs are on this page" in text
        assert text.count("People prefer neither response (both bad).") == 1
    few, few_samples = write(tmp_path / "few", [0, 1])
    run(few, f"replay:{few_samples}", tmp_path / "alone")
    assert 'data-kind="tie"' not in (tmp_path / "alone" / "report.html").read_text()


def test_three_classes_are_compared(two: tuple[Path, Path]) -> None:
    """By paired differences: three of six pairs are lost, two of four ties are won."""
    old, new = map(read_run, two)
    found = figures_against(old, new).three_way
    assert found is not None
    assert old.report.ties is not None
    gaps = [-1.0, 0.0] * 3 + [1.0, 0.0, 1.0, 0.0]
    assert (found.difference, found.interval) == (-0.1, difference_interval(gaps, list(map(str, range(10)))))
    table = two[0] / "table.csv"
    said = CliRunner().invoke(app, ["bench", "compare", *map(str, two), "--out", str(table)]).stdout
    assert f"| {with_interval(0.5, old.report.ties.three_way.interval)} |" in said
    assert f"{signed(-0.1)} [{', '.join(map(signed, found.interval))}]" in said
    assert float(list(csv.DictReader(table.read_text().splitlines()))[1]["three_way_difference_low"]) == found.interval[0]


def test_gate_and_requirements(two: tuple[Path, Path], tmp_path: Path) -> None:
    """By the accuracy in three classes, of one group too; refused where there are no ties, before anything is queried."""
    old, new = map(read_run, two)
    verdict = gate_runs(old, new, parse_figure("three_way"))
    assert (verdict.passes, verdict.sentence[:23]) == (True, "three_way: -10.0 points")
    assert not gate_runs(old, new, parse_figure("three_way"), proves=True).passes
    data, samples = write(tmp_path / "few", [0, 1, 0])
    run(data, f"replay:{samples}", tmp_path / "alone")
    alone = read_run(tmp_path / "alone")
    with pytest.raises(ConfigError, match="alone has no ties"):
        gate_runs(alone, alone, parse_figure("three_way"))
    wanted = tuple(map(parse_requirement, ("ties.three_way.accuracy>=0.5", "ties.disagreement.share>=60%")))
    report = run(tmp_path / "all" / "p.jsonl", f"replay:{tmp_path / 'all' / 's.jsonl'}", tmp_path / "met", requirements=wanted)
    assert [one.is_met for one in report.requirements] == [True, False]
    with pytest.raises(ConfigError, match="this run judges no ties"):
        run(data, f"replay:{samples}", tmp_path / "none", requirements=wanted[:1])
    with pytest.raises(ConfigError, match="needs both orders of each pair"):
        run(tmp_path / "all" / "p.jsonl", "baseline:longest", tmp_path / "none", requirements=wanted[1:], orders="given")
    assert not (tmp_path / "none").exists()


def test_runs_of_other_ties_are_not_compared(two: tuple[Path, Path], tmp_path: Path) -> None:
    """The last row is a tie: nine rows have the same pairs with a better response as ten."""
    run(tmp_path / "all" / "p.jsonl", "baseline:first", tmp_path / "nine", limit=9)
    with pytest.raises(ConfigError, match=r"judged 10 rows and .*nine 9; use the same --limit"):
        gate_runs(read_run(two[0]), read_run(tmp_path / "nine"), parse_figure("accuracy"))


def _votes(row: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "votes.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[1:]:
            if line["row"] == row:
                change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines if line))

    return damage


def _turn(line: dict[str, Any]) -> None:
    line["votes"][1]["choice"] = "first" if line["votes"][1]["choice"] == "second" else "second"


def _report(name: str, value: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        report = json.loads((folder / "report.json").read_text())
        place = report["ties"]
        *path, last = name.split(".")
        for part in path:
            place = place[part]
        place[last] = value
        (folder / "report.json").write_text(json.dumps(report))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_votes(2, _turn), "the accuracy in three classes is 50.00 % in the report, the votes give 60.00 %"),
        (_votes(2, _turn), "row 2 has a score of 0.00 %, its votes give 100.00 %"),
        (_votes(2, _turn), "row 2: vote 2 is recorded as first, its text reads second"),
        (
            _votes(5, _turn),
            "the fraction of ties on which the orders disagree is 50.00 % in the report, the votes give 25.00 %",
        ),
        (_votes(5, dict.clear), "4 ties are in the report's scores of ties, votes.jsonl has 3"),
        (_votes(0, _turn), "the accuracy in three classes is 50.00 % in the report, the votes give 40.00 %"),
        (_report("three_way.accuracy", 0.9), "the accuracy in three classes is 90.00 %, its rows give 50.00 %"),
        (_report("three_way.accuracy", 0.9), "the accuracy in three classes is 90.00 % in the report, the votes give 50.00 %"),
        (_report("num_unanswered", 3), "3 pairs without an answer are in the report's scores of ties, votes.jsonl has 0"),
        (_report("num_both_bad", 5), "5 of 4 ties are both bad in the report"),
    ],
)
def test_scores_of_ties_are_recounted(damage: Callable[[Path], None], said: str, two: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(app, ["bench", "check", str(two[0])])
    assert (done.exit_code, "12 votes of votes.jsonl counted, and those on 4 ties; their texts" in done.stdout) == (0, True)
    damage(two[0])
    done = CliRunner().invoke(app, ["bench", "check", str(two[0])])
    assert done.exit_code == 1
    assert said in done.stdout


@pytest.mark.extra("inspect_ai")
def test_an_inspect_log_has_three_classes(tmp_path: Path) -> None:
    data, samples = write(tmp_path / "all", LABELS)
    _, rows = run_bench(bench_settings("pairs", data, f"replay:{samples}", controls=()), tmp_path / "run")
    results = inspect_log(read_run(tmp_path / "run"), rows, with_images=False).results
    (found,) = [score for score in results.scores if score.name == "three classes"]
    assert found.metrics["accuracy"].value == 0.5
