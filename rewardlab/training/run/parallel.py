"""A run on several processes: sums and means over them, several passes per micro-batch, and weights gathered on each process.

FSDP2's private names are used here; ``tests/training/test_fsdp2.py`` fails if they change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from trl.models import unwrap_model_for_generation

from rewardlab.errors import ConfigError
from rewardlab.metrics.running import Metric
from rewardlab.models.padding import PassLimits

_LOST_PEER = re.compile(r"gloo.*(closed by peer|reset by peer|Broken pipe|Socket closed)|NCCL.*remote process exit", re.DOTALL)


def is_lost_peer(error: BaseException) -> bool:
    """Return whether torch.distributed failed because another process of the run has ended."""
    return isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)) is not None


@dataclass(frozen=True)
class Processes:
    """The processes of ``accelerator``; every one must make the same calls."""

    accelerator: Any

    def local(self, num_rows: int) -> slice:
        """Return where this process's ``num_rows`` stand among those of all."""
        start = self.accelerator.process_index * num_rows
        return slice(start, start + num_rows)

    def all(self, flag: bool) -> bool:
        """Return whether ``flag`` holds in every process."""
        return bool(self._gather(flag, torch.bool).all().item())

    def mean(self, value: float) -> float:
        """Return the mean of ``value`` over all processes."""
        return float(self._gather(value, torch.float64).mean().item())

    def max(self, number: int) -> int:
        """Return the largest of the processes' numbers."""
        return int(self._gather(number, torch.long).max().item())

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        total: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return total

    def _gather(self, value: float, dtype: torch.dtype) -> Tensor:
        values: Tensor = self.accelerator.gather(torch.tensor([value], dtype=dtype, device=self.accelerator.device))
        return values


Part = TypeVar("Part")


def pass_limits(accelerator: Any, positions: int | None, rows: int | None = None) -> PassLimits:
    """Return the limits of one pass: so many positions, with as many passes in every process, or so many rows."""
    if positions is None:
        return PassLimits(rows)
    return PassLimits(positions=positions, max_processes=Processes(accelerator).max)


def padding_frac(widths: Sequence[int], passes: Sequence[Sequence[int]]) -> Metric:
    """Return the share of padding in the positions that passes over rows of these widths read."""
    read = sum(len(rows) * max(widths[row] for row in rows) for rows in passes)
    return Metric(1 - sum(widths) / read, read)


@contextmanager
def without_sync(accelerator: Any, model: Any) -> Iterator[None]:
    """Have gradients be added up on this process only: DDP reduces them, and DeepSpeed steps, with the last pass."""
    state = accelerator.gradient_state
    before = state.sync_gradients
    state._set_sync_gradients(False)
    is_deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    try:
        with nullcontext() if is_deepspeed else accelerator.no_sync(model):
            yield
    finally:
        state._set_sync_gradients(before)


def accumulate_passes(accelerator: Any, model: Any, parts: Sequence[Part], loss_of: Callable[[Part], Tensor]) -> Tensor:
    """Return the sum of the parts' losses; only the last part's gradient flows through it, the others' are accumulated
    already."""
    options = {"scale_wrt_gas": False} if accelerator.distributed_type == DistributedType.DEEPSPEED else {}
    total: Tensor | float = 0.0
    for part in parts[:-1]:
        with without_sync(accelerator, model):
            loss = loss_of(part)
            accelerator.backward(loss, **options)
        total = total + loss.detach()
    return loss_of(parts[-1]) + total


@contextmanager
def whole_weights(trainer: Any, gather_deepspeed3: bool = True) -> Iterator[Any]:
    """Yield a trainer's policy as a plain module with all weights on each process, under ZeRO-3 (unless ``gather_deepspeed3``
    is False: then each layer gathers its own) and FSDP2. All processes must enter it together; within it their forward passes
    are independent. Modules in ``trainer.kept_elsewhere`` stay sharded under FSDP2, except weights kept with the model's own.
    Raise ConfigError for FSDP 1.
    """
    accelerator = trainer.accelerator
    if accelerator.distributed_type is DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ConfigError(
            "FSDP of version 1 leaves the policy sharded; set fsdp_version: 2, as configs/accelerate/fsdp2.yaml has it"
        )
    with (
        unwrap_model_for_generation(trainer.model_wrapped, accelerator, gather_deepspeed3_params=gather_deepspeed3) as policy,
        whole_parts(policy, lambda name: not f"{name}.".startswith(trainer.kept_elsewhere)),
    ):
        yield policy


@contextmanager
def whole_parts(model: Any, is_needed: Callable[[str], bool]) -> Iterator[None]:
    """Keep the weights of the needed modules of an unwrapped FSDP2 model ("" is the model itself) gathered, for forward passes
    without gradient. Other models are left alone."""
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


@dataclass(frozen=True)
class Launch:
    """The number of processes, the ZeRO stage (FSDP counts as 3), and whether the optimizer's state is in the host's memory."""

    processes: int = 1
    zero: int = 0
    offload: bool = False


def read_launch(path: Path) -> Launch:
    """What a file says. Raises ConfigError for one that accelerate does not take."""
    try:
        config = load_config_from_file(str(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: accelerate does not accept it ({error}); see configs/accelerate/") from error
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    deepspeed = (config.deepspeed_config or {}) if kind == "DEEPSPEED" else {}
    zero = 3 if kind == "FSDP" else int(deepspeed.get("zero_stage", 0))
    return Launch(int(config.num_processes), zero, deepspeed.get("offload_optimizer_device", "none") != "none")
