"""How many tokens a model reads, by its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FACTORS = ("yarn", "linear", "dynamic")  # kinds of RoPE scaling that read so many times as far; others say it themselves


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the most positions of a model's text part; None where its ``config``, as in a config.json, or that part of it
    does not say. RoPE scaling counts, as Qwen's models have it for long texts: vLLM and transformers then read beyond
    ``max_position_embeddings``."""
    text = config.get("text_config") or config
    limit = int(text.get("max_position_embeddings") or 0)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}  # by older and newer versions of transformers
    is_scaled_already = str(text.get("model_type", "")).startswith("gemma3")
    if (scaling.get("rope_type") or scaling.get("type")) in FACTORS and not is_scaled_already:
        original = scaling.get("original_max_position_embeddings") or limit
        limit = max(limit, int(original * (scaling.get("factor") or 1)))
    return limit or None
