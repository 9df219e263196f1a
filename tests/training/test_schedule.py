"""The course of the learning rate: transformers' own schedulers, set as the config says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import (
    Trainer,
    TrainingArguments,
    get_cosine_with_min_lr_schedule_with_warmup,
)

from rewardlab.config import RLConfig, SFTConfig
from rewardlab.training.run.folder import common_arguments

STEPS = 670  # of the paper's run: 335 rollout batches of two steps


def rates(out: Path, **config: Any) -> list[float]:
    """The rate of every step of a run of STEPS, by the trainer that all stages build on."""
    trainer = Trainer(torch.nn.Linear(1, 1), TrainingArguments(**common_arguments(SFTConfig(**config), out)))
    trainer.create_optimizer_and_scheduler(STEPS)
    return list(walk(trainer.optimizer, trainer.lr_scheduler))


def walk(optimizer: Any, scheduler: Any) -> list[float]:
    values = []
    for _ in range(STEPS):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def sgd(rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def test_warm_up_and_floor_of_the_published_code(tmp_path: Path) -> None:
    """3 % of the steps upwards, then a cosine that ends at a tenth of the peak: by transformers' scheduler and by hand."""
    course = rates(tmp_path, learning_rate=1e-6, warmup_ratio=0.03, min_lr_ratio=0.1)
    warm = math.ceil(0.03 * STEPS)
    optimizer = sgd(1e-6)
    theirs = get_cosine_with_min_lr_schedule_with_warmup(optimizer, warm, STEPS, min_lr=1e-7)
    assert course == pytest.approx(walk(optimizer, theirs), rel=1e-12)
    assert course[0] == 0
    assert course[10] == pytest.approx(1e-6 * 10 / 21)
    assert course[warm] == pytest.approx(1e-6)
    halfway = (STEPS + warm) // 2
    progress = (halfway - warm) / (STEPS - warm)
    assert course[halfway] == pytest.approx(1e-7 + 9e-7 * (1 + math.cos(math.pi * progress)) / 2)
    assert 1e-7 < course[-1] < 1.0001e-7


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"warmup_steps": 5, "warmup_ratio": 0.1}, "both set the length of the warm-up; keep one"),
        ({"lr_scheduler": "constant", "warmup_ratio": 0.1}, "constant_with_warmup"),
        ({"warmup_ratio": 3}, "less than 1"),
        ({"min_lr_ratio": 1}, "less than 1"),
    ],
)
def test_what_contradicts_itself(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RLConfig(**config)
