"""A run's folder after a run was killed: which checkpoint is whole, and what of the logs stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rewardlab.config import RLConfig
from rewardlab.training.run.folder import EVALUATIONS, METRICS, SAMPLES, open_run

CONFIG = RLConfig(model="none")


def log(path: Path, steps: Sequence[int], torn: str = "") -> None:
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps) + torn)


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("torn", ['{"global_st', "", "[]"])
def test_a_run_goes_on_from_its_last_whole_checkpoint(tmp_path: Path, torn: str) -> None:
    """The one that was being saved is removed, and what was logged after the whole one; rollouts of step 2 were sampled after
    checkpoint 2 was saved."""
    assert open_run(tmp_path, CONFIG, data="d") is None
    for step, text in ((2, '{"global_step": 2}'), (4, torn)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(text)
    (tmp_path / "checkpoint-6").mkdir()
    log(tmp_path / METRICS, [1, 2, 3, 4])
    log(tmp_path / EVALUATIONS, [0, 2, 4])
    log(tmp_path / SAMPLES, [0, 0, 1, 1, 2, 2, 3, 3], torn='{"step": 4, "te')
    assert open_run(tmp_path, CONFIG, data="d") == str(tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    logs = [steps_in(tmp_path / name) for name in (METRICS, EVALUATIONS, SAMPLES)]
    assert logs == [[1, 2], [0, 2], [0, 0, 1, 1]]
