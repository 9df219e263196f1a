"""How the family of a checkpoint is shown videos: Qwen's as qwen_vl_utils samples them, others evenly spread frames."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from rewardlab.data.qwen_video import QwenFrames
from rewardlab.errors import CheckpointError

# model type of a configuration -> side of a patch of its vision tower in px
QWEN_PATCH_PX = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16, "qwen3_vl_moe": 16}


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
            f"{model}: its configuration cannot be read ({error}), so it is not known how it is shown videos"
        ) from error


@cache
def video_policy_of(model: str) -> QwenFrames | None:
    """Return how a checkpoint's family samples videos; None: frames evenly spread. Raise CheckpointError."""
    patch_px = QWEN_PATCH_PX.get(model_type_of(model))
    return None if patch_px is None else QwenFrames(patch_px)
