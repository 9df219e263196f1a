"""Several forward and backward passes where a trainer makes one: a micro-batch that is read in parts, each with less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from accelerate.utils import DistributedType
from torch import Tensor

from rewardlab.metrics.running import Metric
from rewardlab.models.padding import PassLimits
from rewardlab.training.run.process_group import Processes

Part = TypeVar("Part")


def pass_limits(accelerator: Any, positions: int | None, rows: int | None = None) -> PassLimits:
    """Return what one pass reads at most: so many positions, by which all processes have as many passes, or so many rows where
    no number of positions is given."""
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
    """Return the sum of the parts' losses, through which the gradient of the last part alone flows: those of the others are
    there by now."""
    options = {"scale_wrt_gas": False} if accelerator.distributed_type == DistributedType.DEEPSPEED else {}
    total: Tensor | float = 0.0
    for part in parts[:-1]:
        with without_sync(accelerator, model):
            loss = loss_of(part)
            accelerator.backward(loss, **options)
        total = total + loss.detach()
    return loss_of(parts[-1]) + total
