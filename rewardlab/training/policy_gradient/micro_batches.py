"""Micro-batches of rollouts of like length, within one optimizer step: which rollouts are in which step stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from rewardlab.models.padding import PassLimits
from rewardlab.training.policy_gradient.batch import TRLBatch


def rollout_widths(batch: TRLBatch) -> list[int]:
    """Return the tokens of each rollout, prompt and completion together."""
    both: Tensor = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    return [int(width) for width in both.tolist()]


def split_rollouts(batch: TRLBatch, limits: PassLimits) -> list[TRLBatch]:
    """Return the parts in which a micro-batch is read, each rollout with its images. What has no dimension stays whole."""
    rollouts = split_pixel_values_by_grid(batch)
    parts = limits.cut(rollout_widths(batch))
    return [dict(unsplit_pixel_values_by_grid(_select(rollouts, rows))) for rows in parts]


def sort_steps(micro_batches: Sequence[TRLBatch], per_step: int) -> list[TRLBatch]:
    """Return as many micro-batches of as many rollouts, those of each optimizer step (``per_step`` of them) sorted by length:
    the longest rollouts first, those of one length in their order."""
    batches = list(micro_batches)
    for start in range(0, len(batches), per_step):  # one step at a time: the pixels of one are held twice, not of all
        batches[start : start + per_step] = _sorted(batches[start : start + per_step])
    return batches


def _sorted(micro_batches: list[TRLBatch]) -> list[TRLBatch]:
    all_widths = [width for batch in micro_batches for width in rollout_widths(batch)]
    order = sorted(range(len(all_widths)), key=lambda row: -all_widths[row])
    if order == sorted(order):
        return micro_batches
    parts = [split_pixel_values_by_grid(batch) for batch in micro_batches]
    step = _select({name: _join([part[name] for part in parts]) for name in parts[0]}, order)
    return [dict(unsplit_pixel_values_by_grid(part)) for part in split_tensor_dict(step, len(parts))]


def _join(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [row for value in values for row in value]
    return torch.cat(values) if isinstance(values[0], Tensor) and values[0].ndim else values[0]


def _select(batch: TRLBatch, rows: Sequence[int]) -> TRLBatch:
    selected: TRLBatch = {}
    for name, value in batch.items():
        if isinstance(value, list):
            selected[name] = [value[row] for row in rows]
        else:
            selected[name] = value[list(rows)] if isinstance(value, Tensor) and value.ndim else value
    return selected
