"""Prefixes that several prompts share, their images included, are read once: the two orders of a pair, the pairs of a group,
a prompt's many rationales.

A template that puts the responses last lets the image and the question be shared. Rows of one group must show the same
images; how many of their tokens they share is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rewardlab.models.families import count_places, has_grids, join_images, left_pad, split_images


@dataclass(frozen=True)
class SharedPrefix:
    """``prefix``: inputs of [G, P]; ``rest``: [R, S] token ids and mask, both left-padded; ``group`` [R]: whose prefix a row
    continues."""

    prefix: dict[str, Tensor]
    rest_ids: Tensor
    rest_mask: Tensor
    group: Tensor


def common_length(rows: Sequence[Tensor]) -> int:
    """Return how many tokens all rows begin with alike; at least one of each is left over."""
    least = min(len(row) for row in rows) - 1
    first = rows[0][:least]
    differs = torch.zeros(least, dtype=torch.bool, device=first.device)
    for row in rows[1:]:
        differs |= row[:least] != first
    return int(differs.nonzero()[0]) if differs.any() else least


def split_prefixes(inputs: dict[str, Tensor], groups: Sequence[int], image_token: int | None) -> SharedPrefix | None:
    """Split left-padded inputs of [R, T] into prefixes and what follows them; None where that would read no fewer positions,
    padding included, or where images come in another form than Qwen's.

    ``groups`` [R] are numbers from 0 on, in the order in which they first occur. Rows of a group that differ before the last
    of their images are each a group of their own.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    image_fields = ("pixel_values", "image_grid_thw") if image_token is not None and has_grids(inputs) else ()
    others = [name for name, values in inputs.items() if values.shape != ids.shape and name not in image_fields]
    if max(groups) + 1 == len(groups) or others:  # what others hold cannot be told apart by prompt
        return None
    rows = [row[len(row) - length :] for row, length in zip(ids, mask.sum(1).tolist(), strict=True)]
    members, lengths = _shareable(rows, groups, image_token)
    group = {row: number for number, numbers in enumerate(members) for row in numbers}
    groups = [group[row] for row in range(len(rows))]
    rest = max(len(row) - lengths[number] for row, number in zip(rows, groups, strict=True))
    if len(members) * max(lengths) + len(rows) * rest >= ids.numel():
        return None
    leaders = [numbers[0] for numbers in members]
    begins = [rows[leader][:length] for leader, length in zip(leaders, lengths, strict=True)]
    prefix = dict(zip(("input_ids", "attention_mask"), _left_padded(begins), strict=True))
    for name, values in inputs.items():
        if name not in prefix and values.shape == ids.shape:  # token types and the like, aligned with the tokens
            aligned = [values[n][-len(rows[n]) :][:length] for n, length in zip(leaders, lengths, strict=True)]
            prefix[name] = left_pad(aligned, 0)
    if image_token is not None and has_grids(inputs):
        images = split_images(inputs, None, count_places(ids, image_token))
        prefix |= join_images([images[n] for n in leaders])
    rest_ids, rest_mask = _left_padded([row[lengths[group] :] for row, group in zip(rows, groups, strict=True)])
    return SharedPrefix(prefix, rest_ids, rest_mask, torch.tensor(list(groups), device=ids.device))


def _shareable(rows: Sequence[Tensor], groups: Sequence[int], image_token: int | None) -> tuple[list[list[int]], list[int]]:
    """Return the rows of each group, and how many tokens they begin with alike; a row of a group with nothing to share, or
    with an image behind what it shares, by itself."""
    members: list[list[int]] = [[] for _ in range(max(groups) + 1)]
    for row, number in enumerate(groups):
        members[number].append(row)
    shareable: list[list[int]] = []
    for numbers in members:
        length = common_length([rows[n] for n in numbers])
        late = image_token is not None and any((rows[n][length:] == image_token).any() for n in numbers)
        shareable += [[n] for n in numbers] if late or not length else [numbers]
    return shareable, [common_length([rows[n] for n in numbers]) for numbers in shareable]


def _left_padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return [N, longest] values, zero where there are none, and the mask of where there are some."""
    return left_pad(rows, 0), left_pad([torch.ones_like(row) for row in rows], 0)


def group_numbers(keys: Sequence[Any]) -> list[int]:
    """Return equal numbers for equal keys, from 0 on in the order in which they first occur."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
