"""The report as dataclasses and as JSON: one is the other, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.pairs import write_parquet


@pytest.mark.parametrize("text", ["<answer>1</answer>", "no verdict"])
def test_there_and_back(text: str, demo_pairs: Any, tmp_path: Path) -> None:
    """Reports of a judge with confidences, and of one without any verdict, whose confidences have no calibration."""
    write_parquet(demo_pairs[0][:12], tmp_path / "pairs.parquet")
    lines = [{"row": row, "order": order, "text": text} for row in range(12) for order in ("given",) * 3 + ("swapped",) * 4]
    lines += [{"row": row, "order": "given", "text": "<answer>2</answer>"} for row in range(6)] if "answer" in text else []
    (tmp_path / "votes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = bench_settings("pairs", tmp_path / "pairs.parquet", f"replay:{tmp_path / 'votes.jsonl'}")
    report, _ = run_bench(settings, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report.to_json() == written
    assert Report.from_json(written) == report
    assert list(Report.from_json(written).to_json()) == list(written)
    assert ("ece" in written["confidence"]["vote_share"]) == ("answer" in text)
    with pytest.raises(ValueError, match="lacks undecided_rate, valid_majority, one_vote: run the same command again"):
        Report.from_json(
            {name: v for name, v in written.items() if name not in ("undecided_rate", "valid_majority", "one_vote")}
        )
    with pytest.raises(ValueError, match="lacks decision, k_curve: run the same command again"):
        Report.from_json({name: value for name, value in written.items() if name not in ("decision", "k_curve")})
