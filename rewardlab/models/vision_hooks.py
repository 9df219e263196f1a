"""Micro-batches without an image, on one of several processes: the vision tower takes part all the same.

The others have images and wait, in DDP's reduction or in ZeRO-3's gathering, for gradients and weights of a tower that this one
would not have run. So it runs it on a grey square, and adds nothing of the result.
"""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor, nn

from rewardlab.models.families import image_fields, vision_language_module


def always_run_vision_tower(model: nn.Module, processor: Any) -> None:
    """Have every forward pass of ``model`` without pixels run the vision tower on a grey square, with a weight of 0.

    Hooks do it, within the module that DDP or DeepSpeed wraps, and where an image would be embedded: between embedding
    the words and reading them. Weights are gathered, and gradients reduced, in the order of their use, which must be one.
    """
    inner = vision_language_module(model)
    square = image_fields(processor.image_processor(images=[Image.new("RGB", (56, 56), "grey")], return_tensors="pt"))
    is_blind = [False]

    def before(module: Any, args: Any, kwargs: Any) -> None:
        decoding = kwargs.get("past_key_values") is not None
        is_blind[0] = kwargs.get("pixel_values") is None and not decoding  # without a gradient, too: ZeRO-3 gathers weights

    def before_language(module: Any, args: Any, kwargs: Any) -> Any:
        if not is_blind[0]:
            return None
        is_blind[0] = False
        embedded = kwargs["inputs_embeds"]
        inputs = {key: value.to(embedded.device) for key, value in square.items()}
        inputs["pixel_values"] = inputs["pixel_values"].to(embedded.dtype)
        zero: Any = 0.0 * sum(part.sum() for part in _tensors(inner.get_image_features(**inputs)))
        return args, {**kwargs, "inputs_embeds": embedded + zero.to(embedded)}

    inner.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    inner.language_model.register_forward_pre_hook(before_language, with_kwargs=True, prepend=True)


def _tensors(features: Any) -> list[Tensor]:
    """Return what the language model takes of an image: not the hidden states behind it, whose use would have another order."""
    if isinstance(features, Tensor):
        return [features]
    if hasattr(features, "items"):
        features = [part for name, part in features.items() if name not in ("last_hidden_state", "hidden_states", "attentions")]
    return [tensor for part in features or () for tensor in _tensors(part)]
