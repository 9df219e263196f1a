"""Configs of short runs on a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from rewardlab.config import ConsistencyConfig, DPOConfig, PRMConfig, RLConfig, RMConfig, SFTConfig

Stage = TypeVar("Stage", SFTConfig, DPOConfig, RMConfig, PRMConfig)

WITH_CRITIC: dict[str, Any] = {
    "advantage": "gae",
    "outliers": "keep",
    "preclip": None,
    "value_learning_rate": 3e-3,
    "lr_scheduler": "constant",
    "health": {"policy": "warn"},  # of a critic that is fitted in no run this short
}


def short_rl_config(checkpoint: Path | str = "x", **changes: Any) -> RLConfig:
    """Return the config of two steps on one batch of eight rollouts of eight tokens, without an endpoint to ask."""
    values: dict[str, Any] = {
        "model": str(checkpoint),
        "template": "plain",
        "learning_rate": 1e-3,
        "rollout_batch_size": 8,
        "batch_size": 4,
        "micro_batch_size": 4,
        "max_steps": 2,
        "save_steps": 2,
        "max_completion_length": 8,
        "gradient_checkpointing": False,
        "consistency": ConsistencyConfig(weight=0.0),
    }
    return RLConfig(**(values | changes))


def short_config(stage: type[Stage], checkpoint: Path | str, **changes: Any) -> Stage:
    """Return the config of four steps of SFT, a reward model or a process reward model, with a checkpoint at the second."""
    values: dict[str, Any] = {
        "model": str(checkpoint),
        "learning_rate": 1e-2,
        "lr_scheduler": "constant",
        "max_steps": 4,
        "batch_size": 8,
        "micro_batch_size": 8,
        "save_steps": 2,
        "gradient_checkpointing": False,
        "data_workers": 0,
    }
    return stage(**(values | changes))
