"""A CUDA graph on a CPU: the operations of a region are recorded, and repeated on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Operation = tuple[Callable[..., Any], Any, Any, Any]


class RecordedGraph:
    """Repeats what was recorded. Results are written where they were; views and operations in place need no copy."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, results in self.operations:
            for result, new in zip(tree_leaves(results), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(result, torch.Tensor) and new.data_ptr() != result.data_ptr():
                    result.copy_(new)


class Recording(TorchDispatchMode):
    """Records the operations of a region, without their effects on what was there before: a capture runs nothing."""

    def __init__(self, graph: RecordedGraph, **options: Any) -> None:
        super().__init__()
        self._operations = graph.operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = ("item", "is_nonzero", "nonzero", "_local_scalar_dense", "equal")
        assert func.overloadpacket.__name__ not in waits, f"{func} waits for the card: no graph can hold it"
        results = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, results))
        return results


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Have the decoder's steps keep their shapes and be recorded on a CPU; return the graphs, as they are made."""
    from rewardlab.samplers import decode

    graphs: list[RecordedGraph] = []

    def make() -> RecordedGraph:
        graphs.append(RecordedGraph())
        return graphs[-1]

    monkeypatch.setattr(decode, "has_fixed_steps", lambda model: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    return graphs
