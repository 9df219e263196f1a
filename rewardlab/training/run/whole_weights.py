"""A policy, or parts of it, with all weights on each process.

Of FSDP2 private names are used; ``tests/training/test_fsdp2.py`` fails where they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from rewardlab.errors import ConfigError


@contextmanager
def whole_weights(trainer: Any, gather_deepspeed3: bool = True) -> Iterator[Any]:
    """Yield a trainer's policy as a plain module whose weights are whole on each process: of ZeRO-3 (not where
    ``gather_deepspeed3`` is False: then each layer gathers its own in each forward pass) and of FSDP2. All processes must enter
    it together.

    Within it a forward pass waits for no other process, so that processes may make different numbers of them. It takes the
    memory of the whole policy on each. Of FSDP2, modules that are ``trainer.kept_elsewhere`` stay in parts; weights of theirs
    that FSDP2 keeps with the model's own are whole. Raise ConfigError for FSDP of version 1, which is not gathered here.
    """
    accelerator = trainer.accelerator
    if accelerator.distributed_type is DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ConfigError(
            "FSDP of version 1 leaves a policy in parts; set fsdp_version: 2, as configs/accelerate/fsdp2.yaml has it"
        )
    with (
        unwrap_model_for_generation(trainer.model_wrapped, accelerator, gather_deepspeed3_params=gather_deepspeed3) as policy,
        whole_parts(policy, lambda name: not f"{name}.".startswith(trainer.kept_elsewhere)),
    ):
        yield policy


@contextmanager
def whole_parts(model: Any, is_needed: Callable[[str], bool]) -> Iterator[None]:
    """Have those modules of an unwrapped FSDP2 model that are needed by their names ("" is the model itself) keep their weights
    whole, for forward passes without gradient. Nothing happens to a model of another kind."""
    if not isinstance(model, FSDPModule):
        yield
        return
    root: Any = model._get_fsdp_state()
    root._lazy_init()  # else the first part that is read by itself would take itself for the whole
    modules: Iterable[tuple[str, Any]] = model.named_modules()  # type: ignore[attr-defined]
    parts = [part for name, part in modules if isinstance(part, FSDPModule) and is_needed(name)]
    groups = [group for part in parts if (group := part._get_fsdp_state()._fsdp_param_group)]  # of one mesh: one group
    after_forward = [group.post_forward_mesh_info for group in groups]  # None: weights stay whole after a forward pass
    try:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
    finally:
        for group, before in zip(groups, after_forward, strict=True):
            group.post_forward_mesh_info = before
            group._post_forward_indices.clear()  # no backward pass goes back over these forward passes
        root._comm_ctx.post_forward_order.clear()
        for part in parts:
            part.reshard()
