"""Dtypes of training, adapters, checkpoints and models for inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rewardlab.data.files import write_atomic
from rewardlab.errors import CheckpointError


def trains_in_bfloat16() -> bool:
    """Return whether training computes in bfloat16, by autocast above float32 weights: on a GPU."""
    return torch.cuda.is_available()


def adapters_to_float32(model: Any) -> None:
    """Cast the trained weights of a model's adapters to float32, in place.

    TRL casts adapters on 4-bit weights to bfloat16, whose 8 bits of precision lose a step of 1e-5 of a weight of 0.01: most
    would never move. Call it before the optimizer is made.
    """
    if not hasattr(model, "peft_config"):
        return
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()


def config_dtype(config: Any) -> torch.dtype:
    """Return the dtype of saved weights in a configuration; float32 if it has none."""
    return config.dtype or config.get_text_config().dtype or torch.float32


def round_checkpoint(folder: Path, dtype: torch.dtype) -> None:
    """Round the float32 weights in a checkpoint folder to ``dtype``, file by file, and record it in its configuration.

    Smaller dtypes, adapters and the head of a value model stay as they are. Raise CheckpointError for a weight beyond the range
    of ``dtype``.
    """
    if dtype == torch.float32:
        return
    paths = [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("adapter_")]
    sizes = [_round_file(path, dtype) for path in paths]
    for index in folder.glob("*.safetensors.index.json"):
        listed = json.loads(index.read_text(encoding="utf-8"))
        listed["metadata"]["total_size"] = sum(sizes)
        write_atomic(index, json.dumps(listed, indent=2, sort_keys=True) + "\n")
    if paths:
        write_config_dtype(folder, dtype)


def write_config_dtype(folder: Path, dtype: torch.dtype) -> None:
    """Record ``dtype`` in the configuration of a checkpoint folder and in each of its parts."""
    path, name = folder / "config.json", str(dtype).removeprefix("torch.")
    config = json.loads(path.read_text(encoding="utf-8"))
    parts = [part for part in config.values() if isinstance(part, dict) and "dtype" in part]
    for part in (config, *parts):
        part["dtype"] = name
    write_atomic(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def _round_file(path: Path, dtype: torch.dtype) -> int:
    """Round the weights in a file; return their bytes."""
    with safe_open(path, "pt") as file:
        metadata, names = file.metadata(), list(file.keys())
        weights = {name: _round(file.get_tensor(name), name, dtype) for name in names}
    partial = path.with_name(f"{path.name}.partial")
    save_file(weights, partial, metadata)
    partial.replace(path)
    return sum(weight.nbytes for weight in weights.values())


def _round(weight: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    if weight.dtype != torch.float32 or name.startswith("head."):
        return weight
    small = weight.to(dtype)
    if torch.isinf(small).any() and not torch.isinf(weight).any():
        raise CheckpointError(f"weight {name} is beyond the range of {dtype}; set `dtype: bfloat16` or `dtype: float32`")
    return small
