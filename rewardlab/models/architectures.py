"""Architectures of known models, from their published configurations, without weights."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    Glm46VConfig,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
)

_Part = dict[str, object]  # of a configuration
_ROPE_25: _Part = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]}
_ROPE_3: _Part = {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
_VISION_25: _Part = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
_VISION_25 |= {"fullatt_block_indexes": [7, 15, 23, 31]}
_VISION_3: _Part = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
_VISION_3 |= {"deepstack_visual_indexes": [8, 16, 24]}
_SMALL_VISION_3: _Part = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}
_SMALL_VISION_3 |= {"deepstack_visual_indexes": [5, 11, 17]}


def _qwen2_5(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int, tied: bool) -> Any:
    text: _Part = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    text |= {"num_key_value_heads": kv_heads, "vocab_size": vocabulary, "rope_parameters": _ROPE_25}
    text |= {"max_position_embeddings": 128000}
    vision = {**_VISION_25, "out_hidden_size": hidden}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)


def _qwen3(vision: _Part, hidden: int, inner: int, layers: int, heads: int, tied: bool) -> Any:
    text: _Part = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    text |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_parameters": _ROPE_3}
    text |= {"max_position_embeddings": 262144}
    return Qwen3VLConfig(text_config=text, vision_config={**vision, "out_hidden_size": hidden}, tie_word_embeddings=tied)


def _qwen3_moe(hidden: int, inner: int, layers: int, heads: int) -> Any:
    text: _Part = {"hidden_size": hidden, "intermediate_size": 6144, "num_hidden_layers": layers, "num_attention_heads": heads}
    text |= {"num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "rope_parameters": _ROPE_3}
    text |= {"max_position_embeddings": 262144, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": inner}
    vision = {**_VISION_3, "out_hidden_size": hidden}
    return Qwen3VLMoeConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)


_GLM_ROPE: _Part = {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
_GLM_TEXT: _Part = {"model_type": "glm4v_text", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40}
_GLM_TEXT |= {"num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 151552, "rope_parameters": _GLM_ROPE}
_GLM_TEXT |= {"max_position_embeddings": 131072}
_GLM_VISION: _Part = {"model_type": "glm4v_vision", "depth": 24, "hidden_size": 1536, "num_heads": 12}
_GLM_VISION |= {"out_hidden_size": 4096, "intermediate_size": 13696}

ARCHITECTURES = {
    "Qwen/Qwen2.5-VL-3B-Instruct": lambda: _qwen2_5(2048, 11008, 36, 16, 2, 151936, True),
    "Qwen/Qwen2.5-VL-7B-Instruct": lambda: _qwen2_5(3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/Qwen3-VL-4B-Instruct": lambda: _qwen3(_SMALL_VISION_3, 2560, 9728, 36, 32, True),
    "Qwen/Qwen3-VL-8B-Instruct": lambda: _qwen3(_VISION_3, 4096, 12288, 36, 32, False),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": lambda: _qwen3_moe(2048, 768, 48, 32),
    "zai-org/GLM-4.6V-Flash": lambda: Glm46VConfig(text_config=_GLM_TEXT, vision_config=_GLM_VISION),
}


def config_of(model: str) -> Any | None:
    """Return the configuration of a checkpoint folder (for an adapter, its base) or of a known model; else None."""
    if model in ARCHITECTURES:
        return ARCHITECTURES[model]()
    adapter = Path(model) / "adapter_config.json"
    if adapter.exists():
        return config_of(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    return AutoConfig.from_pretrained(model) if (Path(model) / "config.json").exists() else None


@cache
def build_on_meta(model: str) -> Any | None:
    """Return the model on the meta device; None if its configuration is unknown."""
    config = config_of(model)
    if config is None:
        return None
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)
