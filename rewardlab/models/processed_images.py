"""Each image is processed once, however many prompts of a batch show it.

A processor prepares the images of all prompts it is given: of a group of 16 rollouts the same ones 16 times, and it holds all
of them as tensors, resized, scaled and cut into patches, beside their copy in one piece. Here it is given one image at a time,
and each image only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import BatchFeature

from rewardlab.processes import return_freed_memory

TRIM_EVERY = 8  # images, after which memory that was freed goes back to the system


def image_key(image: Image) -> Hashable:
    """Return a key that identifies an image by its pixels."""
    return image.mode, image.size, hashlib.blake2b(image.tobytes()).digest()


class ProcessedImages:
    """What a processor made of each image, kept in the host's memory until :meth:`clear`: 24 bytes a pixel for Qwen's families,
    beside the batch that is made of them."""

    def __init__(self) -> None:
        self._fields: dict[Hashable, dict[str, Any]] = {}

    def clear(self) -> None:
        """Forget all images."""
        self._fields.clear()

    @contextmanager
    def used_by(self, processor: Any) -> Iterator[None]:
        """Have ``processor`` process each image once while the block runs; what it returns is the same, bit for bit.

        A processor without images stays as it is.
        """
        images_processor = getattr(processor, "image_processor", None)
        if images_processor is None:
            yield
            return
        whole, instance_method = images_processor.preprocess, vars(images_processor).get("preprocess")

        def preprocess(images: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["return_tensors"] = "pt"  # TRL asks for tensors to train on, and for nothing in particular to sample from
            parts, options = [], repr((args, sorted(kwargs.items())))
            for image in _flat(images):
                key = image_key(image), options
                if key not in self._fields:
                    self._fields[key] = dict(whole([image], *args, **kwargs))
                    if len(self._fields) % TRIM_EVERY == 0:  # or what images leave behind tears the heap into pieces
                        return_freed_memory()
                parts.append(self._fields[key])
            if not parts:
                return whole(images, *args, **kwargs)
            return BatchFeature({name: _joined([part[name] for part in parts]) for name in parts[0]})

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
    """Return the parts of a field in one piece."""
    return torch.cat(values) if isinstance(values[0], Tensor) else [row for value in values for row in value]
