"""Adapters and the weights below them, as one set of weights for an engine that knows no adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn


def merged_weights(
    model: Any, gather: Callable[[Sequence[nn.Parameter]], AbstractContextManager[None]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name as in a checkpoint, weight) of a peft model, its adapters merged in; the model keeps its own.

    peft merges in place and takes out again, which rounds twice: of a bfloat16 weight below a float32 adapter, another number
    is left, and after some hundred times half of all frozen weights are others. Here one weight at a time is merged into a
    copy, which is peft's, bit by bit. ``gather`` is entered around the weights that each needs, on every process.
    """
    layers = {f"{name}.base_layer.weight": layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    for name, weight in model.named_parameters():
        if model.prefix in name or "original_module" in name:  # adapters, and what a trained copy stands for
            continue
        layer = layers.get(name)
        with gather([weight] if layer is None else list(layer.parameters())):
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield plain, weight.data if layer is None else _merged(layer, weight)


@torch.no_grad()
def _merged(layer: Any, weight: nn.Parameter) -> Tensor:
    merged = weight.detach().clone()
    for adapter in layer.active_adapters:
        merged += layer.get_delta_weight(adapter)
    return merged
