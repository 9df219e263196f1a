"""The configs that claim to be the paper's have its values, each with its source; what differs from it says why.

Paper: arXiv 2505.02835 v2, section 5 unless another place is named. Code: the released R1-Reward of 9 May 2025.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import SCHEMAS, TrainConfig, load_config, stage_of

CONFIGS = Path(__file__).parents[2] / "configs"
PIXELS = {"min": 4 * 28**2, "max": 640 * 28**2}  # code: experience_maker.py, data_processor.py, and its three evaluations
SCHEDULE = {"warmup_ratio": 0.03, "min_lr_ratio": 0.1}  # code: scripts/train.sh, cosine_with_min_lr; the paper is silent

PAPER: dict[str, dict[str, Any]] = {
    "rl/stable_reinforce_qwen2_5_vl_7b": {
        "learning_rate": 1e-6,  # paper
        "kl_coef": 0.0,  # paper
        "epochs": 5,  # paper
        "batch_size": 128,  # paper, code
        "rollout_batch_size": 256,  # paper, code
        "group_size": 1,  # code; the paper's advantage needs no group (section 4.1)
        "iterations": 1,  # code: --max_epochs 1
        "temperature": 1.0,  # code
        "max_completion_length": 1024,  # code
        "clip_low": 0.2,  # code
        "preclip": (1e-3, 1e3),  # paper, section 4.1
        "outlier_sigma": 3.0,  # paper, section 4.1
        "adam_beta2": 0.95,  # code
        "weight_decay": 0.0,  # code
        "max_grad_norm": 1.0,  # code
        "lr_scheduler": "cosine",  # code
        "both_orders": False,  # paper: each pair once
        "attempts": ["2", "3", "unsolved"],  # paper: the hard ones
        "format_weight": 0.5,  # paper, section 4.3; code
        "consistency.weight": 0.5,  # paper, section 4.3; code
        "consistency.model": "Qwen/Qwen2.5-VL-7B-Instruct",  # paper
        "pixels": PIXELS,
        **SCHEDULE,
    },
    "sft/qwen2_5_vl_7b": {
        "model": "Qwen/Qwen2.5-VL-7B-Instruct",  # paper
        "learning_rate": 1e-5,  # paper
        "batch_size": 256,  # paper
        "epochs": 1,  # paper
        "pixels": PIXELS,
        **SCHEDULE,
    },
}
# What differs from the paper on purpose, and the word of the config's own comment that says why.
ON_PURPOSE = {
    "rl/stable_reinforce_qwen2_5_vl_3b": {"rollout_batch_size": "for one card to draw", "batch_size": "two optimizer steps"},
    "rl/stable_reinforce_qlora_24gb": {"pixels": "memory", "learning_rate": "as is usual for adapters"},
    "sft/qwen2_5_vl_7b_qlora": {"pixels": "memory", "learning_rate": "as is usual for adapters"},
    "rl/stable_reinforce_multi_node": {"rollout_batch_size": "leave cards idle", "learning_rate": "square root of two"},
}
JUDGES = sorted(path for stage in ("rl", "sft") for path in (CONFIGS / stage).glob("*.yaml"))


def config_of(name: str) -> Any:
    path = CONFIGS / f"{name}.yaml"
    return load_config(SCHEMAS[stage_of(path)], path)


def value_of(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config.model_dump() if hasattr(config, "model_dump") else config


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in PAPER.items() for key in keys])
def test_a_value_of_the_paper(name: str, key: str) -> None:
    assert value_of(config_of(name), key) == PAPER[name][key]


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in ON_PURPOSE.items() for key in keys])
def test_what_differs_says_why(name: str, key: str) -> None:
    [line] = [line for line in (CONFIGS / f"{name}.yaml").read_text().splitlines() if line.startswith(f"{key}:")]
    assert ON_PURPOSE[name][key] in line
    paper = PAPER["rl/stable_reinforce_qwen2_5_vl_7b" if name.startswith("rl") else "sft/qwen2_5_vl_7b"]
    assert value_of(config_of(name), key) != paper[key]


def test_rollout_batches_of_the_paper() -> None:
    """Whole batches alone are drawn: 67 an epoch of 17,261 pairs, 335 in five epochs, as figure 2 ends."""
    config = config_of("rl/stable_reinforce_qwen2_5_vl_7b")
    assert 17_261 // config.rollout_batch_size * config.epochs == 335
    for path in JUDGES:
        assert "337" not in path.read_text(), path


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_judge_is_cut_off_at_its_usual_length(path: Path) -> None:
    """Judgments have 600 to 690 tokens in the mean (paper, figure 2b): half as many again must fit."""
    config = load_config(SCHEMAS[path.parent.name], path)
    assert isinstance(config, TrainConfig)
    assert getattr(config, "max_completion_length", 1024) >= 1.45 * 690


@pytest.mark.parametrize("stage", ["rl", "sft", "rm"])
def test_a_stage_shows_what_the_stage_before_showed(stage: str) -> None:
    """Every config of Qwen2.5-VL-7B from the paper's cold start on bounds pictures alike, and every sample."""
    for path in (CONFIGS / stage).glob("*.yaml"):
        config = load_config(SCHEMAS[stage], path)
        assert isinstance(config, TrainConfig)
        if config.pixels is None or config.lora or not config.model.startswith("Qwen/Qwen2.5-VL"):
            continue
        assert config.pixels.model_dump() == PIXELS, path
        assert config.max_tokens, path
