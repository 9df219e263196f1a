"""Runs as records of Every Eval Ever, and their votes read again: the profile loses nothing that a report is made of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.every_eval_ever import write_every_eval_ever
from rewardlab.benchmarks.pairs import load_labelled_pairs
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.errors import ConfigError, DataError
from tests.support.shell import run_main

VOTES = (  # of the pairs in turn, (in the given order, in the swapped one)
    (("first", "ok"), ("second", "ok")),
    ((None, "tie"), ("first", "ok")),
    ((None, "timeout"), (None, "truncated")),
    (("first", "ok"), (None, "no_verdict")),
)
FINISHES = {"timeout": "timeout", "truncated": "length"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twelve pairs of two groups and two ties; two votes of each order, with every kind of status, and some margins."""
    pairs = [
        {"pair_id": f"p{n // 2}", "question": f"q{n // 2}?", "responses": [f"a{n}", "b"], "category": f"c {n % 2}"}
        for n in range(14)
    ]
    labels: list[dict[str, Any]] = [*({"preferred": n % 2} for n in range(12)), {"tie": "tie"}, {"tie": "tie"}]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(pair | label) + "\n" for pair, label in zip(pairs, labels, strict=True)))
    lines = []
    for row in range(14):
        for order, (choice, status) in zip(("given", "swapped"), VOTES[row % 4], strict=True):
            vote = {
                "order": order,
                "choice": choice,
                "status": status,
                "rule": "tag",
                "text": f"{row} says \ud83d ü",
                "num_tokens": 7,
            }
            vote |= {"finish": FINISHES.get(status, "stop"), "error": "late" if status == "timeout" else ""}
            vote |= {"margin": 0.25 if choice == "first" else -1.5} if status == "ok" else {}
            lines += [{"row": row, "vote": vote}] * 2
    (tmp_path / "votes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_bench(bench_settings("pairs", data, f"replay:{tmp_path / 'votes.jsonl'}", controls=()), tmp_path / "run")
    return tmp_path


def test_there_and_back(run: Path) -> None:
    """The records' scores are the report's accuracy, and the votes read again give the same report."""
    done = run_main(main, "bench", "export", run / "run", "--form", "every_eval_ever", "--out", run, "--model", "me/my-judge")
    assert done.returncode == 0, done.stderr
    [path] = (run / "data" / "pairs" / "me" / "my-judge").glob("*[0-9a-f].json")
    aggregate, report = json.loads(path.read_text()), read_run(run / "run").report
    details = aggregate["detailed_evaluation_results"]
    samples = run / details["file_path"]
    assert hashlib.sha256(samples.read_bytes()).hexdigest() == details["checksum"]
    records = list(map(json.loads, samples.read_text().splitlines()))
    assert len(records) == details["total_rows"] == 14 * 4
    results = {result["evaluation_result_id"]: result for result in aggregate["evaluation_results"]}
    accuracy = results["pairs/accuracy"]["score_details"]
    assert accuracy["score"] == report.scores.accuracy.micro
    interval = accuracy["uncertainty"]["confidence_interval"]
    assert (interval["lower"], interval["upper"]) == report.scores.interval
    assert {record["evaluation_id"] for record in records} == {aggregate["evaluation_id"]}
    of_pairs = [record for record in records if record["evaluation_result_id"] == "pairs/accuracy"]
    assert (
        sum(record["evaluation"]["score"] for record in of_pairs) / 48 == pytest.approx(3 / 8) == report.scores.accuracy.micro
    )
    first, third = records[0]["metadata"], records[2]["metadata"]
    assert [(facts["order"], facts["sample"], facts["verdict"]) for facts in (first, third)] == [
        ("AB", "0", "A"),
        ("BA", "0", "A"),
    ]
    assert [record["error"] for record in records[8:11]] == ["late", "late", None]
    command = ["bench", "import", "every_eval_ever", samples, "--data", run / "pairs.jsonl", "--out", run / "again.jsonl"]
    done = run_main(main, *command)
    assert "56 of 56 samples, of 14 of 14 rows; 0 match no row" in done.stdout, done.stderr
    settings = bench_settings("pairs", run / "pairs.jsonl", f"replay:{run / 'again.jsonl'}", controls=())
    again, _ = run_bench(settings, run / "again")
    assert (again.scores, again.ties) == (report.scores, report.ties)


def test_what_is_refused(run: Path) -> None:
    """A name that is no OWNER/NAME, a failed run, other data, another profile; nothing is written."""
    finished, rows = read_run(run / "run"), load_labelled_pairs(run / "pairs.jsonl", images=None, with_images=False)
    with pytest.raises(ConfigError, match=r"--model \.\./x: expected OWNER/NAME"):
        write_every_eval_ever(finished, rows, run / "out", model="../x")
    with pytest.raises(DataError, match="row 13 is not in the data"):
        write_every_eval_ever(finished, rows[:13], run / "out", model="me/x")
    path = run / "run" / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "failure": "28 of 80 votes failed"}))
    with pytest.raises(DataError, match="the run failed"):
        write_every_eval_ever(read_run(run / "run"), rows, run / "out", model="me/x")
    assert not (run / "out").exists()
    (run / "no_choice.jsonl").write_text((run / "votes.jsonl").read_text().replace('"first"', "null"))
    with pytest.raises(DataError, match="only ok has a choice"):
        run_bench(bench_settings("pairs", run / "pairs.jsonl", f"replay:{run / 'no_choice.jsonl'}"), run / "none")
    record = {"metadata": {"profile": "other/1"}, "sample_id": "p0", "output": {"raw": [""]}}
    (run / "samples.jsonl").write_text(json.dumps(record))
    command = [
        "bench",
        "import",
        "every_eval_ever",
        run / "samples.jsonl",
        "--data",
        run / "pairs.jsonl",
        "--out",
        run / "x.jsonl",
    ]
    done = run_main(main, *command)
    assert (done.returncode, "in the profile pairwise/1" in done.stderr, (run / "x.jsonl").exists()) == (2, True, False)


@pytest.mark.extra("every_eval_ever")
def test_the_published_validator_accepts_it(run: Path) -> None:
    """Schema, paths, checksum and links, by the package's own validator (Python 3.12 or later)."""
    from every_eval_ever.validate import main as validate

    finished, rows = read_run(run / "run"), load_labelled_pairs(run / "pairs.jsonl", images=None, with_images=False)
    path = write_every_eval_ever(finished, rows, run / "out", model="me/x", repo="me/set")
    assert validate([str(path), str(path.with_name(f"{path.stem}_samples.jsonl"))]) == 0
