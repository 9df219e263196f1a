"""A run that reports to trackio: what its database holds is what the run logged.

Skipped where trackio is not installed (`pip install trackio`): trackio 0.43 takes no Pillow of 13 or later.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.files import read_lines
from rewardlab.data.pairs import write_parquet
from rewardlab.types import choice_of
from rewardlab.verdicts.parse import format_verdict

ROOT = Path(__file__).parents[2]


@pytest.mark.extra("trackio")
def test_trackio(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Project and run bear the names a reader looks for; its losses are those of metrics.jsonl; nothing leaves the machine."""
    pairs = [
        replace(pair, attempts="1", judgment=format_verdict(choice_of(pair.preferred or 0, pair.order), "x"))
        for pair in demo_pairs[0][:40]
    ]
    write_parquet(pairs, tmp_path / "pairs.parquet")
    settings = {"model": str(tiny_checkpoint), "template": "plain", "max_steps": 3, "batch_size": 8, "micro_batch_size": 8}
    settings |= {"report_to": "trackio", "logging_steps": 1, "gradient_checkpointing": False}
    (tmp_path / "sft.yaml").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "rewardlab.cli", "sft", "--data", "pairs.parquet", "--config", "sft.yaml", "--out", "my_run"],
        cwd=tmp_path,
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "trackio" / "rewardlab.db") as database:
        rows = database.execute("select metrics from metrics where run_name = 'my_run' order by id").fetchall()
    reported = [loss for (text,) in rows if (loss := json.loads(text).get("train/loss")) is not None]
    logged = [loss for line in read_lines(tmp_path / "my_run" / "metrics.jsonl") if (loss := json.loads(line).get("loss"))]
    assert reported == pytest.approx(logged)
    assert len(reported) == 3
