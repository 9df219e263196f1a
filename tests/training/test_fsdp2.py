"""Two processes whose weights lie in parts, by FSDP2: the same runs as on one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.utils import DistributedType

from rewardlab.errors import ConfigError
from rewardlab.models.whole_weights import whole_weights
from tests.support import scaled_runs
from tests.support.launching import train_on
from tests.training.test_processes import same

KINDS = ("sft", "rl", "rl+lora", "rl+critic", "rl+evaluated")


def test_weights_in_parts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """SFT, RL with the trainer's own decoder, with adapters, with a critic and a reference, evaluated meanwhile; and a run that
    was killed goes on."""
    for kind in KINDS:
        changes = scaled_runs.CHANGES.get(kind, {})
        scaled_runs.run(kind.partition("+")[0], tiny_checkpoint, tmp_path / f"{kind}_alone", **changes)
    train_on(tiny_checkpoint, tmp_path, *(f"{kind}:{kind}" for kind in KINDS), "rl:begun:kill", fsdp=True)
    assert (tmp_path / "begun" / "checkpoint-2" / "pytorch_model_fsdp.bin").exists()  # accelerate sharded it
    train_on(tiny_checkpoint, tmp_path, "rl:begun", fsdp=True)
    for kind in KINDS:
        same(tmp_path / f"{kind}_alone", tmp_path / kind)
    same(tmp_path / "rl_alone", tmp_path / "begun")


def test_fsdp_of_version_1() -> None:
    accelerator: Any = SimpleNamespace(distributed_type=DistributedType.FSDP, is_fsdp2=False)
    with pytest.raises(ConfigError, match="fsdp_version: 2"), whole_weights(None, accelerator):
        pass
