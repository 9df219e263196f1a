"""The page of a training run, from the files in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.errors import DataError
from rewardlab.reporting.run_page import TrainingRun, run_page

PAGE = "run.html"


def write_run_page(run: Path) -> Path:
    """Write ``run/run.html``; returns its path. Raises DataError where ``run`` is not the folder of a training run."""
    if not (run / "run.json").exists():
        raise DataError(f"{run}: not a training run (no run.json in it); give the --out of sft, rl, rm, prm or policy")
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    page = run_page(
        TrainingRun(
            name=run.name,
            config=record["config"],
            commit=record["commit"],
            versions=record["versions"],
            is_finished=(run / "final").exists(),
            metrics=read_complete_lines(run / "metrics.jsonl"),
            events=read_complete_lines(run / "health.jsonl"),
            samples=read_complete_lines(run / "samples.jsonl"),
            evaluation=record.get("evaluation"),
        )
    )
    write_atomic(run / PAGE, page)
    return run / PAGE
