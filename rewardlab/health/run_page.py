"""The page of a training run, from the files in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewardlab.data.files import complete_lines, read_complete_lines, write_atomic
from rewardlab.errors import DataError
from rewardlab.health.rollout_pairs import pairs_of_run
from rewardlab.reporting.rollouts import newest_ids, rollouts_by_step, steps_to_show
from rewardlab.reporting.run_page import TrainingRun, run_page
from rewardlab.rewards.policy_signs import bounds_of_signs, early_sentence

PAGE = "run.html"


def write_run_page(run: Path, *, data: Path | None = None, images: Path | None = None) -> Path:
    """Write ``run/run.html``; returns its path. Raises DataError where ``run`` is not the folder of a training run.

    ``data`` are the pairs that it was trained on, with media below ``images``, where they are elsewhere than they were; raises
    DataError or MediaError where they are others or cannot be read.
    """
    if not (run / "run.json").exists():
        raise DataError(f"{run}: not a training run (no run.json in it); give the --out of sft, rl, rm, prm or policy")
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    samples, metrics = _samples_to_show(run / "samples.jsonl"), read_complete_lines(run / "metrics.jsonl")
    limits = record["config"].get("signs") or {}  # of a policy
    page = run_page(
        TrainingRun(
            name=run.name,
            config=record["config"],
            commit=record["commit"],
            versions=record["versions"],
            is_finished=(run / "final").exists(),
            metrics=metrics,
            events=read_complete_lines(run / "health.jsonl"),
            samples=samples,
            evaluation=record.get("evaluation"),
            pairs=pairs_of_run(run, record, newest_ids(rollouts_by_step(samples)), data=data, images=images),
            bounds=bounds_of_signs(metrics, limits),
            too_early=early_sentence(metrics) if limits else "",
        )
    )
    write_atomic(run / PAGE, page)
    return run / PAGE


def _samples_to_show(path: Path) -> list[dict[str, Any]]:
    """Return the rollouts of the steps that are shown. A long run's are not in memory all at once."""
    steps = set(steps_to_show(row["step"] for row in complete_lines(path)))
    return [row for row in complete_lines(path) if row["step"] in steps]
