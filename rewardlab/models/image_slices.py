"""Images of a batch are processed a few at a time: what a processor holds beside its result does not grow with the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from rewardlab.processes import return_freed_memory

IMAGES = 8  # processed together


@contextmanager
def images_in_slices(processor: Any, number: int = IMAGES) -> Iterator[None]:
    """Have ``processor`` process ``number`` images at a time while the block runs; what it returns is the same.

    Without, it holds all images of a batch as tensors, resized, scaled and cut into patches, beside their copy in one piece: of
    64 images of half a megapixel 1.7 GB beside 0.8.
    """
    images_processor = getattr(processor, "image_processor", None)
    if images_processor is None:
        yield
        return
    whole, instance_method = images_processor.preprocess, vars(images_processor).get("preprocess")

    def preprocess(images: Any, *args: Any, **kwargs: Any) -> Any:
        flat = list(_flat(images))
        if len(flat) <= number:
            return whole(images, *args, **kwargs)
        parts = []
        for start in range(0, len(flat), number):
            parts.append(whole(flat[start : start + number], *args, **kwargs))
            return_freed_memory()  # images come and go in blocks that the allocator would keep, and tear into pieces
        result = parts[0]
        for name in list(result):
            result[name] = _joined([part.pop(name) if part is not result else part[name] for part in parts])
        return result

    images_processor.preprocess = preprocess
    try:
        yield
    finally:
        del images_processor.preprocess
        if instance_method is not None:
            images_processor.preprocess = instance_method


def _flat(images: Any) -> Iterator[Any]:
    """Yield images of nested lists one after another."""
    for image in images if isinstance(images, (list, tuple)) else [images]:
        if isinstance(image, (list, tuple)):
            yield from _flat(image)
        else:
            yield image


def _joined(values: list[Any]) -> Any:
    """Return the parts of a field in one piece, each let go of once it is copied."""
    if not isinstance(values[0], Tensor):
        return [row for value in values for row in value]
    result = values[0].new_empty((sum(map(len, values)), *values[0].shape[1:]))
    place = 0
    values.reverse()
    while values:
        part = values.pop()
        result[place : place + len(part)] = part
        place += len(part)
    return result
