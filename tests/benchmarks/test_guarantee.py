"""`rewardlab guarantee`: what a run and labels certify, what is refused, and what is not certified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.calibrate import certify_run, guarantee_lines
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.pairs import write_parquet
from rewardlab.data.ratings import write_ratings
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.guarantee import Guarantee, read_guarantee
from rewardlab.types import PreferencePair, Rating, Tie

NUM, UNSURE, WRONG = 130, 100, 115  # from row UNSURE on two votes of three name the answer, from row WRONG on the wrong one


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """130 pairs in both orders, three votes each: all for the better answer, then two, then one."""
    folder = tmp_path_factory.mktemp("guarantee")
    pairs = [PreferencePair(f"p{n}", f"Question {n}?", (f"yes {n}", f"no {n}"), n % 2) for n in range(NUM)]
    write_parquet(pairs, folder / "pairs.parquet")
    lines = []
    for row in range(NUM):
        for order in ("given", "swapped"):
            named = 1 + ((row % 2 == 1) != (order == "swapped"))
            num_right = 3 if row < UNSURE else 2 if row < WRONG else 1
            lines += [
                {"row": row, "order": order, "text": f"<answer>{named if k < num_right else 3 - named}</answer>"}
                for k in range(3)
            ]
    (folder / "replay.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run_bench(bench_settings("pairs", folder / "pairs.parquet", f"replay:{folder / 'replay.jsonl'}"), folder / "run")
    return folder / "run"


def certified(run: Path, labels: Path | None = None, *, error: float = 0.05, **more: Any) -> Guarantee:
    return certify_run(run, labels, error=error, confidence=0.9, **more)


def test_the_command_certifies_prints_and_writes(run: Path) -> None:
    done = CliRunner().invoke(app, ["guarantee", str(run)])
    said = " ".join(done.output.split())
    assert done.exit_code == 0, done.output
    assert "130 of 130 pairs are labelled; one of each prompt counts: 130" in said
    assert "coverage 76.9 % [" in said
    assert "realised error 0.0 % [0.0," in said
    found = read_guarantee(run)
    assert found == read_guarantee(run / "guarantee.json")
    assert found.votes == 3
    assert found.certified.threshold == pytest.approx(2 / 3)
    assert (found.certified.num_given, found.certified.num_wrong) == (100, 0)
    assert found.evidence["labels"] == "the benchmark's"


def test_a_larger_error_covers_more(run: Path) -> None:
    assert certified(run, error=0.2).evidence["coverage"][0] == 1
    assert certified(run, error=0.2).certified.num_wrong == 15


def test_no_threshold_is_a_finding(run: Path) -> None:
    done = CliRunner().invoke(app, ["guarantee", str(run), "--error", "0.01"])
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "the judge abstains from all pairs: it takes 230 labelled prompts with a verdict at least" in said
    found = read_guarantee(run)
    assert found.certified.threshold is None
    with pytest.raises(ConfigError, match="no threshold was certified"):
        found.check(0.01, found.judge)


def test_a_seed_below_zero_is_refused(run: Path) -> None:
    done = CliRunner().invoke(app, ["guarantee", str(run), "--seed", "-1"])
    assert done.exit_code == 2
    assert "--seed" in done.output


def test_labels_are_peoples(run: Path, tmp_path: Path) -> None:
    """The plurality of the raters counts, a tie makes a verdict wrong, and a pair that all skip has no label."""
    ratings = [(f"p{n}", Rating(rater, n % 2)) for n in range(60) for rater in ("ann", "bob")]
    write_ratings(tmp_path / "labels.jsonl", [*ratings, ("p60", Rating("ann", None))])
    found = certified(run, tmp_path / "labels.jsonl")
    assert (found.certified.num_labels, found.certified.num_wrong) == (60, 0)
    assert (found.evidence["num_labelled"], found.evidence["num_pairs"]) == (60, NUM)
    assert found.evidence["coverage"][0] == 100 / NUM  # no label is of a lower confidence
    assert guarantee_lines(found)[1].startswith("threshold 0.9999: of the verdicts with more confidence")
    ties = [(f"p{n}", Rating(rater, Tie.TIE)) for n in range(20) for rater in ("ann", "bob")]
    write_ratings(tmp_path / "ties.jsonl", [*ties, *ratings[40:]])
    found = certified(run, tmp_path / "ties.jsonl")
    assert found.certified.threshold is None
    assert "of the 60 surest verdicts 20 are wrong, so that the error may be 42.3 %" in guarantee_lines(found)[1]
    write_ratings(tmp_path / "others.jsonl", [("q", Rating("ann", 0))])
    with pytest.raises(DataError, match="none of its 1 pairs is among the 130 judged ones"):
        certified(run, tmp_path / "others.jsonl")


def test_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"such as --error 0\.05"):
        certified(run, error=0.7)
    with pytest.raises(DataError, match="not a guarantee"):
        read_guarantee(tmp_path)
    report = json.loads((run / "report.json").read_text())
    for name in ("scores.jsonl", "votes.jsonl"):
        (tmp_path / name).write_text((run / name).read_text())
    for change, said in (({"orders": "random"}, "expected orders=both"), ({"failure": "no answers"}, "the run failed")):
        (tmp_path / "report.json").write_text(json.dumps({**report, **change}))
        with pytest.raises((ConfigError, DataError), match=said):
            certified(tmp_path)
