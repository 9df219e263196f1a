"""Images processed a few at a time: what the processor returns is the same, for every family and any nesting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rewardlab.models.image_slices import images_in_slices
from rewardlab.models.loading import load_processor

SIZES = ((60, 80), (56, 56), (120, 40), (56, 56), (90, 30))


def pictures() -> list[Image.Image]:
    dice = np.random.default_rng(0)
    return [Image.fromarray(dice.integers(0, 256, (height, width, 3), dtype=np.uint8)) for height, width in SIZES]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_slices_change_nothing(family: str, checkpoint_of: Callable[[str], Path]) -> None:
    """Bit for bit: pixels, grids and tokens of prompts with no, one and two images; of more images than one slice."""
    processor = load_processor(str(checkpoint_of(family)))
    images, counts = pictures(), (2, 0, 1, 2)
    prompts = [
        [{"role": "user", "content": [*[{"type": "image"}] * count, {"type": "text", "text": f"prompt {n}"}]}]
        for n, count in enumerate(counts)
    ]
    texts = [processor.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in prompts]
    ends = np.cumsum(counts)
    nested = [images[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def inputs() -> dict[str, Any]:
        return dict(processor(text=texts, images=nested, padding=True, return_tensors="pt"))

    whole, shapes = inputs(), list[int]()
    original = type(processor.image_processor).preprocess

    def counted(given: Any, *args: Any, **kwargs: Any) -> Any:
        shapes.append(len(given))
        return original(processor.image_processor, given, *args, **kwargs)

    processor.image_processor.preprocess = counted
    with images_in_slices(processor, 2):
        sliced = inputs()
    assert shapes == [2, 2, 1], "images were processed together"
    assert processor.image_processor.preprocess is counted
    assert sliced.keys() == whole.keys()
    assert "pixel_values" in whole
    for name, value in whole.items():
        assert torch.equal(sliced[name], value), name


def test_the_processor_is_as_before(checkpoint_of: Callable[[str], Path]) -> None:
    """Also after a failure; one without images is left alone."""
    processor = load_processor(str(checkpoint_of("qwen2_5_vl")))
    with pytest.raises(KeyError), images_in_slices(processor):
        raise KeyError
    assert "preprocess" not in vars(processor.image_processor)
    with images_in_slices(processor.tokenizer):
        assert processor.tokenizer("a")["input_ids"]
