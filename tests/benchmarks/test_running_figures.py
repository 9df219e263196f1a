"""What a benchmark says while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.config.data import Prices
from rewardlab.data.pairs import write_parquet
from rewardlab.reporting import progress
from tests.support.openai_server import ChatServer, chat_server


@pytest.mark.slow
def test_the_figures_of_the_votes_so_far(
    demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who pays for ten thousand requests sees after the first hundred that none can be read."""
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    write_parquet(demo_pairs[0][:10], data := tmp_path / "pairs.parquet")
    server = ChatServer(refuse=lambda body, number: (400, "no") if number == 5 else None)
    with chat_server(server) as url:
        prices, one_by_one = Prices(prompt=1000.0, completion=10000.0), {"concurrency": 1, "deadline_s": 30.0}
        settings = bench_settings("pairs", data, f"openai:m@{url}", controls=(), prices=prices, **one_by_one)
        run_bench(settings, tmp_path / "a")
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bench: votes")]
        server.text = "I cannot say."
        run_bench(settings, tmp_path / "a")  # the one that failed is asked again
        last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bench: votes")][-1]
    assert "100.0 % of votes right" in lines[1] or "0.0 % of votes right" in lines[1]
    assert lines[-1].startswith("bench: votes: 20 of 20, ")
    assert "1 failed, $3.80" in lines[-1]  # 19 answers of 100 + 10 tokens
    assert "1 invalid, $4.00" in last
    assert "failed" not in last
    assert abs(float(last.split(" % of votes right")[0].split()[-1]) - 50.0) <= 5.0  # it names the first one
