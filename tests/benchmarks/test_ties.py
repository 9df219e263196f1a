"""Sets with ties: labelled pairs are scored as if alone, ties have scores of their own, and runs are replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.base import TIES_PASS
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.report import report_markdown, write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.robustness.run import run_robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.errors import DataError

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
