"""Fields of a forward pass dealt out over rows: every way gives each row its own images, in either form of pixels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rewardlab.models.families import (
    image_fields_of_rows,
    images_by_row,
    images_of_rows,
    left_pad,
    prompt_batch,
    select_fields,
    select_images,
)

IMAGES = [["a"], [], ["b", "c"], ["d"]]  # of four rows
PATCHES = [4, 8, 4, 16]
PROMPTS = [[7, 7], [1], [7, 7, 7], [7, 2]]


def stacked() -> dict[str, Any]:
    """Pixels as Qwen's: one stack of patches, each with the number of its image."""
    pixels = torch.cat([torch.full((count, 2), float(image)) for image, count in enumerate(PATCHES)])
    grids = torch.tensor([[1, 2, count // 2] for count in PATCHES])
    return {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": [[1] * len(ids) for ids in PROMPTS]}


def entries() -> dict[str, Any]:
    """Pixels as Gemma's: one entry per image."""
    pixels = torch.arange(4.0)[:, None, None].expand(4, 3, 3)
    return {"pixel_values": pixels, "token_type_ids": [[1] * len(ids) for ids in PROMPTS]}


def images_in(fields: dict[str, Any]) -> list[float]:
    """The numbers of the images whose pixels are there, in order."""
    pixels: Tensor | None = fields.get("pixel_values")
    return [] if pixels is None else torch.unique_consecutive(pixels.flatten(1)[:, 0]).tolist()


@pytest.mark.parametrize("make", [stacked, entries])
def test_each_row_keeps_its_images(make: Any) -> None:
    """Fields are taken by row, by choice and by batch; rows without images get no pixels."""
    fields = make()
    everything = {**fields, "num_images": [1, 0, 2, 1]}
    for rows, expected in [([0, 1], [0]), ([1], []), ([1, 2, 3], [1, 2, 3]), ([3, 2], [3, 1, 2])]:
        assert images_in(image_fields_of_rows(everything, rows)) == expected
    for chosen, expected in [([3, 0], [3, 0]), ([2], [1, 2]), ([1], []), ([0, 1, 2, 3], [0, 1, 2, 3])]:
        picked = select_fields(fields, IMAGES, chosen, [5] * len(chosen))
        assert images_in(picked) == expected
        types = next(value for name, value in picked.items() if name.endswith("token_type_ids"))
        assert types == [[1] * len(PROMPTS[row]) + [0] * (5 - len(PROMPTS[row])) for row in chosen]
    batch = prompt_batch(PROMPTS, fields, IMAGES, [2, 0, 1], pad=9)
    assert images_in(batch) == [1, 2, 0]
    assert batch["input_ids"].tolist() == [[7, 7, 7], [9, 7, 7], [9, 9, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    types = next(value for name, value in batch.items() if name.endswith("token_type_ids"))
    assert types.tolist() == batch["attention_mask"].tolist()
    assert images_in(prompt_batch(PROMPTS, {}, None, [1], pad=9)) == []


def test_pixels_that_no_rule_covers() -> None:
    """Refused with what there is, not dealt out by guess."""
    with pytest.raises(NotImplementedError, match="4 entries of pixels for 5 images"):
        select_images(entries(), [0], 5)
    with pytest.raises(NotImplementedError, match=r"\['pixel_attention_mask'\]"):
        select_fields({"pixel_attention_mask": torch.ones(1)}, IMAGES, [0], [2])
    assert select_fields(stacked(), None, [0], [2]) == {}


def test_images_are_counted_by_their_tokens() -> None:
    """Four patches behind each token; a row of text has none."""
    rows = [torch.tensor([5] * n + [1]) for n in (1, 0, 3, 4)]
    grids = torch.tensor([[1, 2, 2], [1, 2, 4], [1, 2, 2], [1, 4, 4]])
    assert images_of_rows(rows, grids, 5) == [range(1), range(1, 1), range(1, 3), range(3, 4)]
    assert images_by_row({"pixel_values": torch.zeros(32, 6), "image_grid_thw": grids}, rows, 5) == images_of_rows(
        rows, grids, 5
    )


def test_images_of_one_size_are_counted_by_their_tokens() -> None:
    """Two tokens each: none, two, none and one of three images."""
    rows = [torch.tensor([5] * n + [1]) for n in (0, 4, 0, 2)]
    images = images_by_row({"pixel_values": torch.zeros(3, 3, 8, 8)}, rows, 5)
    assert [list(of_row) for of_row in images] == [[], [0, 1], [], [2]]
    assert [list(of_row) for of_row in images_by_row({}, rows, 5)] == [[]] * 4
    with pytest.raises(NotImplementedError, match="images but no image token"):
        images_by_row({"pixel_values": torch.zeros(3, 3, 8, 8)}, rows, None)


def test_rows_in_any_order_keep_their_images() -> None:
    """Two rows of three, the last first; a row of text has no pixels."""
    batch = {"pixel_values": torch.arange(4.0)[:, None], "num_images": [1, 0, 3]}
    fields = image_fields_of_rows(batch, [2, 0])
    assert fields["pixel_values"].flatten().tolist() == [1.0, 2.0, 3.0, 0.0]
    assert fields["num_images"] == [3, 1]
    assert image_fields_of_rows(batch, [1]) == {}


def test_left_pad() -> None:
    assert left_pad([torch.tensor([1, 2]), torch.tensor([3])], 0).tolist() == [[1, 2], [0, 3]]
