"""DeepSpeed's shards on another number of processes, without DeepSpeed: what is joined, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rewardlab.errors import CheckpointError
from rewardlab.training.run import resume
from rewardlab.training.run.resume import SeparateAdamSteps, fit_to_processes


class _Trainer:
    is_deepspeed_enabled = True

    def __init__(self) -> None:
        plugin = SimpleNamespace(deepspeed_config={})
        self.accelerator, self.callbacks = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)), list[Any]()

    @property
    def config(self) -> dict[str, Any]:
        return self.accelerator.state.deepspeed_plugin.deepspeed_config  # type: ignore[no-any-return]

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)


def _shards(checkpoint: Path, number: int) -> None:
    (checkpoint / "global_step2").mkdir(parents=True)
    for n in range(number):
        (checkpoint / "global_step2" / f"zero_pp_rank_{n}_mp_rank_00_optim_states.pt").touch()


def test_as_many_shards_as_processes_are_read_as_they_are(tmp_path: Path) -> None:
    _shards(tmp_path, 1)
    trainer = _Trainer()
    fit_to_processes(trainer, tmp_path)
    assert (trainer.config, trainer.callbacks) == ({}, [])


def test_other_shards_are_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shards(tmp_path, 2)
    joined: list[tuple[Path, Path]] = []

    def join(shards: Path, into: Path) -> None:
        joined.append((shards, into))
        (tmp_path / "latest_universal").touch()

    monkeypatch.setattr(resume, "_join", join)
    for _ in range(2):
        trainer = _Trainer()
        fit_to_processes(trainer, tmp_path)
        assert trainer.config == {"checkpoint": {"load_universal": True}}
        assert [type(callback) for callback in trainer.callbacks] == [SeparateAdamSteps]
    assert joined == [(tmp_path / "global_step2", tmp_path / "global_step2_universal")]


def test_a_checkpoint_without_shards_is_another_runs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no DeepSpeed state"):
        fit_to_processes(_Trainer(), tmp_path)


def test_parts_that_share_a_counter_of_steps_get_their_own() -> None:
    """Of an optimizer within others, as accelerate's and DeepSpeed's are: moved on by one part it stays for the other."""
    shared = torch.tensor(5.0)
    adam = SimpleNamespace(state={"a": {"step": shared}, "b": {"step": shared}, "c": {"step": 5}})
    SeparateAdamSteps().on_train_begin(optimizer=SimpleNamespace(optimizer=SimpleNamespace(optimizer=adam)))
    adam.state["a"]["step"] += 1  # type: ignore[operator]
    assert [float(of_part["step"]) for of_part in adam.state.values()] == [6.0, 5.0, 5.0]  # type: ignore[arg-type]
