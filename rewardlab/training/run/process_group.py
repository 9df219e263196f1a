"""Small things that all processes of a run must know of each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
