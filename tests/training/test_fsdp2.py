"""Two processes whose weights lie in parts, by FSDP2: the same runs as on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from rewardlab.errors import ConfigError
from rewardlab.training.run.whole_weights import whole_parts, whole_weights
from tests.support import scaled_runs
from tests.support.launching import same, train_on

KINDS = ("sft", "rl", "rl+lora", "rl+critic", "rl+evaluated")


@pytest.mark.nightly
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


class LayerAndHead(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x))  # type: ignore[no-any-return]


def fail(*args: Any) -> None:
    raise ValueError("within")


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_what_fsdp_does_after_a_pass_is_as_before(tmp_path: Path) -> None:
    """Layers are parted after each pass, head and root are not, as accelerate has it. A layer may be the first to be read. An
    error within, in the middle of a pass, leaves the same."""
    model = LayerAndHead()
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model.layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model.head, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    x = torch.ones(1, 4)

    def after_forward() -> list[bool]:
        groups = [getattr(model, name)._get_fsdp_state()._fsdp_param_group for name in ("layer", "head")]
        return [group.post_forward_mesh_info is not None for group in groups]

    def is_whole(name: str) -> bool:
        return not isinstance(getattr(model, name).weight, DTensor)

    with whole_parts(model, lambda name: name == "layer"), torch.no_grad():
        model.layer(x)
        assert is_whole("layer")
        assert not is_whole("head")
        assert after_forward() == [False, False]
    assert after_forward() == [True, False]
    assert not is_whole("layer")
    handle = model.head.register_forward_hook(fail)
    with pytest.raises(ValueError, match="within"), whole_parts(model, lambda name: True), torch.no_grad():
        model(x)
    handle.remove()
    assert after_forward() == [True, False]
    assert not is_whole("layer")
    model(x).sum().backward()
    assert model.layer.weight.grad is not None


def test_fsdp_of_version_1() -> None:
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP, is_fsdp2=False)
    trainer = SimpleNamespace(accelerator=accelerator)
    with pytest.raises(ConfigError, match="fsdp_version: 2"), whole_weights(trainer):
        pass
