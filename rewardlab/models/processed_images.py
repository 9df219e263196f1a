"""A cache of processed images: each image of a batch is processed once, however many prompts contain it.

A processor would process the images of a group of 16 rollouts 16 times, and keep all of the results beside their copy in one
tensor. Here it processes one image at a time, and each only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from PIL.Image import Image
from transformers import BatchFeature

from rewardlab.models.families import join_images
from rewardlab.processes import return_freed_memory

OF_ROWS = frozenset({"pixel_attention_mask", "batch_num_images"})
TRIM_EVERY = 8  # images, after which memory that was freed goes back to the system


def image_key(image: Image) -> Hashable:
    """Return a key that identifies an image by its pixels."""
    return image.mode, image.size, hashlib.blake2b(image.tobytes()).digest()


class ProcessedImages:
    """Processed images, kept in the host's memory until :meth:`clear`: 24 bytes a pixel for Qwen's families. ``last`` are the
    fields of the latest batch. A family whose fields depend on the other images of a row (:data:`OF_ROWS`) is not cached."""

    def __init__(self) -> None:
        self._fields: dict[Hashable, dict[str, Any]] = {}
        self.last: Mapping[str, Any] = {}

    def clear(self) -> None:
        """Forget all images."""
        self._fields.clear()
        self.last = {}

    @contextmanager
    def used_by(self, processor: Any) -> Iterator[None]:
        """Make ``processor`` process each image once inside this context; its outputs stay equal, bit for bit."""
        images_processor = getattr(processor, "image_processor", None)
        if images_processor is None:
            yield
            return
        whole, instance_method = images_processor.preprocess, vars(images_processor).get("preprocess")

        def preprocess(images: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["return_tensors"] = "pt"  # TRL asks for tensors in training only
            if "crop_to_patches" in kwargs and self.last and "num_patches" not in self.last:
                # TRL takes every 4-D pixels of another number than the images for InternVL's tiles, and counts these.
                return {**self.last, "num_patches": torch.ones(len([*_flat(images)]), dtype=torch.long)}
            parts, options = [], repr((args, sorted(kwargs.items())))
            for image in _flat(images):
                key = image_key(image), options
                if key not in self._fields:
                    self._fields[key] = dict(whole([image], *args, **kwargs))
                    if len(self._fields) % TRIM_EVERY == 0:  # against fragmentation of the heap
                        return_freed_memory()
                parts.append(self._fields[key])
                if not OF_ROWS.isdisjoint(parts[-1]) and "spatial_shapes" not in parts[-1]:
                    parts = []
                    break
            self.last = BatchFeature(_joined(parts)) if parts else whole(images, *args, **kwargs)
            return self.last

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


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the concatenated fields of images."""
    lists = {name: [row for part in parts for row in part[name]] for name, value in parts[0].items() if isinstance(value, list)}
    return lists | join_images([{name: value for name, value in part.items() if name not in lists} for part in parts])
