"""How many tokens a model reads, by its config."""

from __future__ import annotations

from typing import Any

import pytest

from rewardlab.models.model_config import max_positions


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({}, None),
        ({"max_position_embeddings": 32768}, 32768),
        ({"text_config": {"max_position_embeddings": 128000, "rope_scaling": {"type": "mrope", "mrope_section": [1]}}}, 128000),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_parameters": {"full": {"rope_type": "default"}}}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {"text_config": {"model_type": "gemma3_text", "max_position_embeddings": 131072}, "rope_scaling": None},
            131072,
        ),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
    ],
)
def test_positions_of_a_config(config: dict[str, Any], positions: int | None) -> None:
    """As vLLM reads them: beyond ``max_position_embeddings`` with YaRN, not with scaling that these already count."""
    assert max_positions(config) == positions
