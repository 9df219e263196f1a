"""A policy, or parts of it, with all weights on each process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from rewardlab.errors import ConfigError


@contextmanager
def whole_weights(
    model: Any, accelerator: Any, gather_deepspeed3: bool = True, *, excluded: tuple[str, ...] = ()
) -> Iterator[Any]:
    """Yield ``model`` as a plain module whose weights are whole on each process: of ZeRO-3 (not where ``gather_deepspeed3`` is
    False: then each layer gathers its own in each forward pass) and of FSDP2. All processes must enter it together.

    Within it a forward pass waits for no other process, so that processes may make different numbers of them. It takes the
    memory of the whole policy on each. Of FSDP2, parts whose names begin with one of ``excluded`` stay as they are. Raise
    ConfigError for FSDP of version 1, whose weights are not gathered here.
    """
    if accelerator.distributed_type is DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ConfigError(
            "FSDP of version 1 leaves a policy in parts; set fsdp_version: 2, as configs/accelerate/fsdp2.yaml has it"
        )
    with (
        unwrap_model_for_generation(model, accelerator, gather_deepspeed3_params=gather_deepspeed3) as policy,
        whole_parts(policy, accelerator, lambda name: not f"{name}.".startswith(excluded)),
    ):
        yield policy


@contextmanager
def whole_parts(model: Any, accelerator: Any, is_needed: Callable[[str], bool]) -> Iterator[None]:
    """Have those modules of an unwrapped FSDP2 model that are needed by their names ("" is the model itself) keep their weights
    whole. Nothing happens to a model of another kind."""
    parts = [part for name, part in model.named_modules() if isinstance(part, FSDPModule) and is_needed(name)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(accelerator.state.fsdp_plugin.reshard_after_forward, recurse=False)
