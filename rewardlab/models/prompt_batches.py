"""Tokenised prompts with images, of different length, as one batch, or some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewardlab.models.value_model import FORWARD_KEYS, fields_of


def left_padded(prompt_ids: list[list[int]], fields: dict[str, Any], pad: int) -> dict[str, Tensor]:
    """Prompts of different length as one batch; per-token fields are padded alike, per-image ones are taken as they are."""
    width = max(map(len, prompt_ids))

    def rows(values: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([[filler] * (width - len(row)) + list(row) for row in values])

    batch = {"input_ids": rows(prompt_ids, pad), "attention_mask": rows([[1] * len(ids) for ids in prompt_ids], 0)}
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            batch[name] = rows(value, 0)
        else:
            batch[name] = _tensor(value)
    return batch


def in_slices(
    prompt_ids: list[list[int]], fields: dict[str, Any], images: Any, pad: int, size: int
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Batches of at most ``size`` prompts as a model reads them, left-padded, and which prompts they are.

    ``images`` are those of each prompt, or None where no prompt has any. Raises NotImplementedError for a field that there is
    no rule for dealing out.
    """
    if unknown := set(fields) - set(FORWARD_KEYS):
        raise NotImplementedError(f"no rule for dealing out {sorted(unknown)}")
    whole = {name: value if name.endswith("token_type_ids") else _tensor(value) for name, value in fields.items()}
    whole["num_images"] = [len(own or ()) for own in images or [()] * len(prompt_ids)]
    for start in range(0, len(prompt_ids), size):
        rows = slice(start, start + size)
        own = fields_of(whole, rows)
        own.pop("num_images", None)
        yield rows, left_padded(prompt_ids[rows], own, pad)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def fields_of_rows(fields: dict[str, Any], images: Any, rows: list[int], lengths: list[int]) -> dict[str, Any]:
    """The multimodal fields of some prompts, whose token ids have grown to ``lengths`` by text."""
    if images is None:
        return {}
    counts = [len(shown or ()) for shown in images]
    own = [sum(counts[:row]) + n for row in rows for n in range(counts[row])]
    picked: dict[str, Any] = {}
    for name, value in fields.items():
        if name.endswith("token_type_ids"):
            picked[name] = [list(value[row]) + [0] * (n - len(value[row])) for row, n in zip(rows, lengths, strict=True)]
        elif name == "image_grid_thw":
            picked[name] = torch.as_tensor(np.asarray(value))[own]
        elif name == "pixel_values":
            patches = torch.as_tensor(np.asarray(fields["image_grid_thw"])).prod(1).tolist()
            parts = torch.as_tensor(np.asarray(value)).split(patches)
            picked[name] = torch.cat([parts[n] for n in own])
        else:
            raise NotImplementedError(f"no rule for picking some prompts' part of {name}")
    return picked


def shown(images: Any) -> list[list[Any]] | None:
    """The images of each prompt, [] for one of text alone; None where no prompt has any."""
    return [own or [] for own in images] if images and any(images) else None
