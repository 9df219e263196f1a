"""Facts in a model's config.json: its type, how its family samples videos, how many tokens it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rewardlab.data.qwen_video import QwenFrames
from rewardlab.errors import CheckpointError

# model type -> side of a patch of its vision tower in px
QWEN_PATCH_PX = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16, "qwen3_vl_moe": 16}
ROPE_FACTORS = ("yarn", "linear", "dynamic")  # kinds of RoPE scaling that multiply the context; others state it themselves


def model_type_of(model: str) -> str:
    """Return the model type of a checkpoint folder (of an adapter, its base) or of a hub id. Raise CheckpointError if its
    configuration cannot be read."""
    folder = Path(model)
    try:
        if (adapter := folder / "adapter_config.json").exists():
            return model_type_of(str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]))
        if folder.is_dir():
            return str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])
        from rewardlab.models.architectures import ARCHITECTURES

        if model in ARCHITECTURES:
            return str(ARCHITECTURES[model]().model_type)
        from transformers import AutoConfig

        return str(AutoConfig.from_pretrained(model).model_type)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{model}: its configuration cannot be read ({error}), so it is unknown how the model reads videos"
        ) from error


@cache
def video_policy_of(model: str) -> QwenFrames | None:
    """Return how a checkpoint's family samples videos, as qwen_vl_utils does; None for evenly spread frames. Raise
    CheckpointError."""
    patch_px = QWEN_PATCH_PX.get(model_type_of(model))
    return None if patch_px is None else QwenFrames(patch_px)


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the most positions of a model's text part by its ``config``, as in a config.json; None if unknown. RoPE scaling,
    which extends ``max_position_embeddings`` in vLLM and transformers, is included."""
    text = config.get("text_config") or config
    limit = int(text.get("max_position_embeddings") or 0)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}  # by older and newer versions of transformers
    is_scaled_already = str(text.get("model_type", "")).startswith("gemma3")
    if (scaling.get("rope_type") or scaling.get("type")) in ROPE_FACTORS and not is_scaled_already:
        original = scaling.get("original_max_position_embeddings") or limit
        limit = max(limit, int(original * (scaling.get("factor") or 1)))
    return limit or None
