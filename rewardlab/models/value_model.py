"""A vision-language model with one number per token instead of a next word.

The same module is the critic of PPO and its kin, the process reward model that scores steps, and the Bradley-Terry scalar head
that generative judges are compared with: what differs is only what it is fitted to and which positions are read.

Shapes: ``N`` rows, ``L`` tokens of prompt and completion together, ``T`` of the completion.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.integrations import deepspeed

from rewardlab.data.files import write_whole
from rewardlab.errors import CheckpointError

# What a forward pass over a rollout batch takes beside tokens and their mask.
FORWARD_KEYS = ("pixel_values", "image_grid_thw", "mm_token_type_ids", "token_type_ids", "num_images")
WEIGHTS, CONFIG = "value_model.safetensors", "config.json"


def fields_of(batch: dict[str, Any], rows: slice) -> dict[str, Any]:
    """What a forward pass over some rows of a batch takes beside tokens and their mask; of rows without images no pixels, for
    no family takes none of them.

    Pixels are one stack of patches (``image_grid_thw`` says how many each image has) or one entry an image.
    """
    found = {key: batch[key][rows] for key in FORWARD_KEYS if key.endswith("token_type_ids") and batch.get(key) is not None}
    num_images = batch.get("num_images")
    if batch.get("pixel_values") is None or num_images is None:
        return found
    first, own = sum(num_images[: rows.start]), num_images[rows]
    if not (images := sum(own)):
        return found
    last, pixels, grid = first + images, batch["pixel_values"], batch.get("image_grid_thw")
    if grid is not None:
        patches = grid.prod(1).tolist()
        found["image_grid_thw"] = grid[first:last]
        found["pixel_values"] = pixels[sum(patches[:first]) : sum(patches[:last])]
    elif pixels.size(0) == sum(num_images):
        found["pixel_values"] = pixels[first:last]
    else:
        raise NotImplementedError(f"{pixels.size(0)} entries of pixels for {sum(num_images)} images: no rule to deal them out")
    return {**found, "num_images": own}


@contextmanager
def read_whole() -> Iterator[None]:
    """Within it weights are read as they are, also where ZeRO-3 would deal them out over the processes while they are read."""
    kept, deepspeed._hf_deepspeed_config_weak_ref = deepspeed._hf_deepspeed_config_weak_ref, None
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = kept


class ValueModel(nn.Module):
    """A backbone and a linear head that starts at zero, so that an untrained one says 0 everywhere."""

    def __init__(self, backbone: nn.Module, config: Any) -> None:
        super().__init__()
        self.backbone, self.config = backbone, config
        self.head = nn.Linear(config.get_text_config().hidden_size, 1, dtype=next(backbone.parameters()).dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_pretrained(cls, model: str, *, dtype: torch.dtype = torch.float32) -> ValueModel:
        """The backbone of checkpoint ``model``, under a fresh head; or a folder that :meth:`save` wrote, head and all.

        Raises CheckpointError for a folder whose weights do not fit its config.
        """
        folder = Path(model)
        if not (folder / WEIGHTS).exists():
            whole = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype)
            return cls(whole.model, whole.config)
        config = AutoConfig.from_pretrained(folder)
        with read_whole():
            value_model = cls(AutoModelForImageTextToText.from_config(config, dtype=dtype).model, config)
        try:
            value_model.load_state_dict(load_file(folder / WEIGHTS))
        except RuntimeError as error:
            raise CheckpointError(f"{folder}: {WEIGHTS} does not fit config.json ({str(error)[:300]})") from error
        return value_model

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Write weights (``state`` where they were gathered elsewhere) and config into ``folder``, the config last."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.state_dict() if state is None else state
        save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, folder / WEIGHTS)
        write_whole(folder / CONFIG, json.dumps(self.config.to_dict(), indent=1, default=str) + "\n")

    def activation_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        self.backbone.activation_checkpointing_enable(*args, **kwargs)  # type: ignore[operator]

    def forward(self, **inputs: Any) -> Tensor:
        """[N, L] one number after each token of the inputs, images included."""
        hidden_NLD = self.backbone(**inputs, use_cache=False).last_hidden_state
        return self.head(hidden_NLD)[..., 0].float()  # type: ignore[no-any-return]


def completion_values(
    model: ValueModel, batch: dict[str, Any], *, size: int, autocast: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """[N, T + 1] of a rollout batch: the number after each prompt, and after each token of its completion.

    So the first T stand before each completion token, the last T after it. Without gradient, ``size`` rollouts at a time.
    """
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    width, values = batch["completion_ids"].size(1), []
    for start in range(0, len(ids), size):
        rows = slice(start, start + size)
        extra = fields_of(batch, rows)
        extra.pop("num_images", None)
        with torch.no_grad(), autocast():
            values.append(model(input_ids=ids[rows], attention_mask=mask[rows], **extra)[:, -width - 1 :])
    return torch.cat(values)
