"""Images processed once each: what the processor returns is the same, for every family and any nesting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rewardlab.models.loading import load_processor
from rewardlab.models.processed_images import ProcessedImages, image_key

SIZES = ((60, 80), (56, 56), (120, 40), (56, 56), (90, 30))


def pictures() -> list[Image.Image]:
    dice = np.random.default_rng(0)
    return [Image.fromarray(dice.integers(0, 256, (height, width, 3), dtype=np.uint8)) for height, width in SIZES]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_what_the_processor_returns_is_the_same(family: str, checkpoint_of: Callable[[str], Path]) -> None:
    """Bit for bit: pixels, grids and tokens of prompts with no, one and two images, some of them shown three times. Each image
    is processed once, in two calls; another option of the processor is another image."""
    processor = load_processor(str(checkpoint_of(family)))
    images, counts = pictures(), (2, 0, 1, 2, 2, 1)
    images += [images[0].copy(), images[4], images[0]]
    prompts = [
        [{"role": "user", "content": [*[{"type": "image"}] * count, {"type": "text", "text": f"prompt {n}"}]}]
        for n, count in enumerate(counts)
    ]
    texts = [processor.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in prompts]
    ends = np.cumsum(counts)
    nested = [images[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def inputs(**options: Any) -> dict[str, Any]:
        return dict(processor(text=texts, images=nested, padding=True, return_tensors="pt", **options))

    whole, calls = inputs(), list[int]()
    original = type(processor.image_processor).preprocess

    def counted(given: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(given))
        return original(processor.image_processor, given, *args, **kwargs)

    processor.image_processor.preprocess = counted
    processed = ProcessedImages()
    for _ in range(2):
        with processed.used_by(processor):
            once = inputs()
        assert calls == [1] * 5
        assert processor.image_processor.preprocess is counted
        assert once.keys() == whole.keys()
        assert "pixel_values" in whole
        for name, value in whole.items():
            assert torch.equal(once[name], value), name
    with processed.used_by(processor):
        unscaled = inputs(do_rescale=False)
    assert calls == [1] * 10
    assert not torch.equal(unscaled["pixel_values"], whole["pixel_values"])
    processed.clear()
    with processed.used_by(processor):
        inputs()
    assert calls == [1] * 15


def test_what_tells_images_apart() -> None:
    """Their pixels, size and mode."""
    different = [
        Image.new("RGB", (4, 2)),
        Image.new("RGB", (2, 4)),
        Image.new("L", (4, 2)),
        Image.new("RGB", (4, 2), (0, 0, 1)),
    ]
    assert len({image_key(image) for image in different}) == len(different)
    assert image_key(different[0].copy()) == image_key(different[0])


def test_the_processor_is_as_before(checkpoint_of: Callable[[str], Path]) -> None:
    """Also after a failure; one without images is left alone."""
    processor = load_processor(str(checkpoint_of("qwen2_5_vl")))
    with pytest.raises(KeyError), ProcessedImages().used_by(processor):
        raise KeyError
    assert "preprocess" not in vars(processor.image_processor)
    with ProcessedImages().used_by(processor.tokenizer):
        assert processor.tokenizer("a")["input_ids"]
