"""The page of all runs below a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from tests.support.shell import run_main


def test_every_run_is_listed(demo_pairs: Any, tmp_path: Path) -> None:
    """With a link to its page; a failed one without a number; one that cannot be read is named; none at all is an error."""
    assert run_main(main, "bench", "index", tmp_path).returncode == 2
    write_parquet(demo_pairs[0][:12], tmp_path / "pairs.parquet")
    for place in ("a b", "deep/er", "failed", "old"):
        report, rows = run_bench(bench_settings("pairs", tmp_path / "pairs.parquet", "baseline:longest"), tmp_path / place)
        if place == "a b":
            write_reports(report, rows, tmp_path / place)
    failed = tmp_path / "failed" / "report.json"
    failed.write_text(json.dumps(json.loads(failed.read_text()) | {"failure": "HTTP 401: <no>"}))
    (tmp_path / "old" / "report.json").write_text("{}")
    done = run_main(main, "bench", "index", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "old" in done.stderr
    page = (tmp_path / "index.html").read_text()
    assert page.count("<tr>") == 1 + 3
    assert '<a href="a%20b/report.html">a b</a>' in page
    assert ">deep/er<" in page
    assert "FAILED: HTTP 401: &lt;no&gt;" in page
    low, high = (100 * end for end in report.scores.interval)
    assert page.count(f"{100 * report.scores.accuracy.micro:.1f} [{low:.1f}, {high:.1f}]") == 2
