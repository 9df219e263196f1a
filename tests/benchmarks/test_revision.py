"""A benchmark of a judge that verifies itself says what that gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks import runner
from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.scores import revision_rows
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.pairs import write_parquet
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.prompts.verification import CORRECT, WRONG
from rewardlab.samplers.base import SelfVerifying
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Message

PLAIN = load_template("plain")


@pytest.fixture
def pairs_file(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:40], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(out: Path, data: Path, sampler: Any, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr(runner, "open_any_judge", lambda settings: GenerativeJudge(sampler, PLAIN))
    report, rows = run_bench(bench_settings("pairs", data, "verify:hf:x", controls=()), out)
    write_reports(report, rows, out)
    return report


def always_first(prompt: tuple[Message, ...], draw: int) -> str:
    """Names the first response, finds that wrong, and names the second."""
    turn = len(prompt) // 2
    return ("<think>a</think><answer>1</answer>", WRONG, "<think>b</think><answer>2</answer>")[turn]


def test_every_judgment_is_flipped(pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both orders one is right and one is wrong, before and after: all right ones are lost and all wrong ones mended."""
    report = bench(tmp_path / "run", pairs_file, SelfVerifying(ScriptedSampler(always_first)), monkeypatch)
    scores = report.revision
    assert scores is not None
    assert (scores.n, scores.first.accuracy, scores.last.accuracy, scores.revised) == (80, 0.5, 0.5, 1.0)
    assert scores.lost is not None
    assert scores.mended is not None
    assert (scores.lost.share, scores.lost.n, scores.mended.share) == (1.0, 40, 1.0)
    assert scores.net_gain.interval[0] < 0 < scores.net_gain.interval[1]
    again = bench(tmp_path / "run", pairs_file, SelfVerifying(ScriptedSampler(always_first)), monkeypatch)  # from votes.jsonl
    assert again.revision == scores
    assert Report.from_json(report.to_json()).revision == scores
    assert revision_rows(scores)[2][0] == "right judgments that are lost"
    for page in ("report.md", "report.html"):
        text = (tmp_path / "run" / page).read_text()
        assert "neither gains nor loses for sure" in text
        assert "wrong judgments that are mended" in text


def test_of_other_judges_nothing_is_said(pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = bench(tmp_path / "run", pairs_file, ScriptedSampler(always_first), monkeypatch)
    assert report.revision is None
    assert "Self-verification" not in (tmp_path / "run" / "report.html").read_text()


def test_a_verification_without_a_revision(pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says "correct" confirms; one that says both is unclear, and the judgment stands."""
    for said, unclear in ((CORRECT, 0.0), (f"{CORRECT} {WRONG}", 1.0)):
        sampler = ScriptedSampler(lambda prompt, draw, said=said: (always_first(prompt, draw), said)[len(prompt) // 2])
        scores = bench(tmp_path / f"{unclear}", pairs_file, SelfVerifying(sampler), monkeypatch).revision
        assert scores is not None
        assert (scores.unclear, scores.revised, scores.net_gain.difference) == (unclear, 0.0, 0.0)
        assert scores.right_confirmed is not None
        assert scores.right_confirmed.share == 1 - unclear
