"""Fields of a forward pass dealt out over rows: every layout gives each row its own images, and joined again is what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rewardlab.models.families import (
    IMAGE_FIELDS,
    IMAGE_ROWS,
    check_fields,
    image_fields_of_rows,
    images_of_tokens,
    join_images,
    left_pad,
    prompt_batch,
    select_fields,
    split_images,
    with_image_rows,
)

NUM_IMAGES = [1, 0, 2, 1]  # of four rows
PATCHES = [4, 8, 4, 16]  # of four images, numbered from 0
PROMPTS = [[7, 5], [1], [7, 5, 5, 5], [5, 5, 5, 5, 2]]  # four patches behind each image token, 5


def numbered(shape: tuple[int, ...], images: list[int]) -> Tensor:
    """Entries of ``shape`` that hold their image's number and a half, so that none is empty."""
    return torch.tensor(images).float().add(0.5).reshape(-1, *(1 for _ in shape)).expand(-1, *shape).contiguous()


def stacked() -> dict[str, Any]:
    """Qwen: one stack of patches."""
    grids = torch.tensor([[1, 2, count // 2] for count in PATCHES])
    return {
        "pixel_values": numbered((2,), torch.arange(4).repeat_interleave(torch.tensor(PATCHES)).tolist()),
        "image_grid_thw": grids,
    }


def packed() -> dict[str, Any]:
    """MiniCPM-V: patches in one line, each as wide as it is high."""
    line = numbered((), torch.arange(4).repeat_interleave(3 * torch.tensor(PATCHES)).tolist())
    return {"pixel_values": line.expand(1, 3, 3, -1), "target_sizes": torch.tensor([[2, count // 2] for count in PATCHES])}


def padded() -> dict[str, Any]:
    """LLaVA-NeXT and OneVision: an entry an image, with its size; images of each row that has any."""
    sizes = torch.tensor([[n, n] for n in range(4)])
    return {"pixel_values": numbered((3, 2, 4), [*range(4)]), "image_sizes": sizes, "batch_num_images": torch.tensor([1, 2, 1])}


def positioned() -> dict[str, Any]:
    """Gemma 4: an entry an image, with the positions of its patches."""
    return {"pixel_values": numbered((6, 2), [*range(4)]), "image_position_ids": torch.zeros(4, 6, 2)}


def tiled() -> dict[str, Any]:
    """InternVL: an entry a tile, as many tiles as image tokens."""
    return {"pixel_values": numbered((3, 2, 2), [0, 1, 1, 2, 3, 3, 3, 3])}


def rowed() -> dict[str, Any]:
    """Idefics3: an entry a row, padded with empty tiles."""
    pixels, mask = torch.zeros(4, 4, 3, 2, 2), torch.zeros(4, 4, 2, 2, dtype=torch.long)
    for row, images in enumerate([[0], [], [1, 1, 2], [3, 3, 3, 3]]):
        for tile, image in enumerate(images):
            pixels[row, tile], mask[row, tile] = image + 0.5, 1
    return {"pixel_values": pixels, "pixel_attention_mask": mask}


def shaped() -> dict[str, Any]:
    """LFM2-VL: an entry a tile, two of the second image, padded to the most patches."""
    shapes = torch.tensor([[2, 2], [2, 2], [1, 4], [2, 2], [4, 4]])
    pixels = {"pixel_values": numbered((16, 3), [0, 1, 1, 2, 3]), "spatial_shapes": shapes}
    return {**pixels, "pixel_attention_mask": (torch.arange(16) < shapes.prod(1)[:, None]).long()}


def pooled() -> dict[str, Any]:
    """Molmo 2: two patches a crop, and the numbers of those behind each token."""
    return {
        "pixel_values": numbered((2, 3), [0, 1, 1, 2, 3, 3]),
        "image_num_crops": torch.tensor([1, 2, 1, 2]),
        "image_grids": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [2, 1, 1, 2]]),
        "image_token_pooling": torch.tensor([[0, 1], [2, 3], [4, 5], [6, -1], [8, 9], [10, 11], [8, -1], [11, -1]]),
    }


LAYOUTS = [stacked, packed, padded, positioned, tiled, rowed, shaped, pooled]


def images_in(fields: dict[str, Any]) -> list[int]:
    """The numbers of the images whose pixels are there, in order; padding is none."""
    if (pixels := fields.get("pixel_values")) is None:
        return []
    axis = {"target_sizes": -1, "pixel_attention_mask": 1}.get(next(reversed(fields)), 0) * ("spatial_shapes" not in fields)
    numbers = pixels.movedim(axis, 0).flatten(1)[:, 0]
    return torch.unique_consecutive(numbers[numbers > 0] - 0.5).int().tolist()


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("counts_known", [True, False])
def test_each_row_keeps_its_images(make: Any, counts_known: bool) -> None:
    """Joined again in order, they are the batch that they were; a row of text has none, and rows may be in any order."""
    fields, tokens = make(), [ids.count(5) for ids in PROMPTS]
    if not counts_known and make in (padded, positioned):
        with pytest.raises(NotImplementedError, match=r"4 entries of .* for an unknown number of images"):
            split_images(fields, None, tokens)
        return
    rows = split_images(fields, NUM_IMAGES if counts_known else None, tokens)
    assert [images_in(row) for row in rows] == [[0], [], [1, 2], [3]]
    again = join_images(rows)
    if make is not rowed:
        for name, value in fields.items():
            assert torch.equal(again[name], value), name
    assert images_in(join_images([rows[3], rows[1], rows[0]])) == [3, 0]
    assert join_images([rows[1]]) == {}
    assert set(fields) <= set(IMAGE_FIELDS)


def test_numbers_of_patches_begin_anew_in_each_row() -> None:
    """Whatever rows are joined: the patches behind a token stay its own."""
    rows = split_images(pooled(), NUM_IMAGES, [1, 0, 3, 4])
    numbers = join_images([rows[3], rows[0]])["image_token_pooling"].tolist()
    assert numbers == [[0, 1], [2, 3], [0, -1], [3, -1], [4, 5]]


def test_images_of_different_sizes_are_padded() -> None:
    """With zeros behind, and positions with what stands for no patch."""
    one = {"pixel_values": torch.ones(1, 2, 3), "image_position_ids": torch.ones(1, 2, 2)}
    two = {"pixel_values": torch.ones(1, 4, 1), "image_position_ids": torch.ones(1, 4, 2)}
    joined = join_images([one, two])
    assert joined["pixel_values"].sum((1, 2)).tolist() == [6, 4]
    assert joined["pixel_values"].shape == (2, 4, 3)
    assert joined["image_position_ids"][0].tolist() == [[1, 1], [1, 1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("make", LAYOUTS)
def test_prompts_are_read_with_their_images(make: Any) -> None:
    """Left-padded, in any order, token fields beside them; grown by text, they keep both."""
    fields = {**make(), "token_type_ids": [[1] * len(ids) for ids in PROMPTS]}
    by_row = with_image_rows(fields, PROMPTS, [["a"], None, ["b", "c"], ["d"]], 5)
    batch = prompt_batch(PROMPTS, by_row, [2, 0, 1], pad=9)
    assert batch["input_ids"].tolist() == [[7, 5, 5, 5], [9, 9, 7, 5], [9, 9, 9, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert batch.pop("token_type_ids").tolist() == batch["attention_mask"].tolist()
    assert images_in(batch) == [1, 2, 0]
    grown = select_fields(by_row, [3, 0], [6, 4])
    assert grown["token_type_ids"] == [[1] * 5 + [0], [1, 1, 0, 0]]
    assert [images_in(row) for row in grown[IMAGE_ROWS]] == [[3], [0]]
    assert images_in(image_fields_of_rows(grown, [1, 0])) == [0, 3]
    assert with_image_rows(fields, PROMPTS, None, 5) == {}
    assert image_fields_of_rows({}, [0]) == {}


def test_fields_without_a_rule() -> None:
    """Refused by name, and numbers that do not match, not dealt out by guess."""
    with pytest.raises(NotImplementedError, match=r"\['aspect_ratio_ids'\]"):
        check_fields({"pixel_values": 0, "aspect_ratio_ids": 0})
    with pytest.raises(NotImplementedError, match=r"8 entries of .* for 5 images"):
        split_images(tiled(), [1, 4], [3, 4])
    for make in (stacked, packed, tiled):  # of a family whose image token nobody knows
        with pytest.raises(NotImplementedError, match="for an unknown number of images"):
            split_images(make(), None, [0, 0, 0, 0])


def test_images_are_counted_by_their_tokens() -> None:
    """Four patches behind each token; a row of text has none."""
    assert images_of_tokens([1, 0, 3, 4], [4, 8, 4, 16]) == [range(1), range(1, 1), range(1, 3), range(3, 4)]


def test_left_pad() -> None:
    assert left_pad([torch.tensor([1, 2]), torch.tensor([3])], 0).tolist() == [[1, 2], [0, 3]]
