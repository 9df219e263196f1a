"""The fields that a run's judge was asked without, over all parts of the run."""

from __future__ import annotations

import json
from pathlib import Path

from rewardlab.benchmarks.run_files import REFUSED_FIELDS
from rewardlab.data.files import write_atomic
from rewardlab.judging.judge import ModelJudge


def asked_without(judge: ModelJudge, out: Path) -> frozenset[str]:
    """Return the fields that the judge was asked without, now or in an earlier part of the run, and keep them in ``out``."""
    path = out / REFUSED_FIELDS
    names = judge.left_out | frozenset(json.loads(path.read_text()) if path.exists() else ())
    if names:
        write_atomic(path, json.dumps(sorted(names)) + "\n")
    return names
