"""The disk that a run needs: checkpoints, of which one more is there than is kept while it is saved."""

from __future__ import annotations

from dataclasses import dataclass

from rewardlab.config import RLConfig, SFTConfig
from rewardlab.health.memory import Setup
from rewardlab.health.units import size_text, weights_text


@dataclass(frozen=True)
class DiskLine:
    """``size`` bytes in the run's folder, and how they are counted."""

    what: str
    size: float
    how: str


def checkpoint_bytes(setup: Setup) -> float:
    """Return the bytes of one checkpoint: weights and the optimizer's state.

    DeepSpeed writes its float32 weights and two moments, its bfloat16 weights, and these once more as ``model.safetensors``.
    """
    learning, total = setup.learning + setup.critic, setup.total + setup.critic
    if setup.config.lora:
        return 12.0 * learning
    if setup.launch.zero:
        return 12.0 * learning + 4.0 * total
    return 4.0 * total + 8.0 * learning


def disk_lines(setup: Setup) -> list[DiskLine]:
    """Return what may lie in the run's folder: a bound, for what is saved at the end is not there while a checkpoint is."""
    config, one = setup.config, checkpoint_bytes(setup)
    number = config.save_total_limit + 1
    how = f"{number} x {size_text(one)}: save_total_limit {config.save_total_limit}, and the one that is being saved"
    total = setup.learning if config.lora else setup.total
    each = 2.0 if setup.launch.zero else 4.0
    weights, kind = each * total, f"{weights_text(total)} x {each:g} B, before it is rounded to its dtype"
    lines = [DiskLine("checkpoints", number * one, how), DiskLine("final", weights, kind)]
    if setup.evaluation and isinstance(config, SFTConfig | RLConfig) and config.evaluation.keep_best:
        how = f"3 x {size_text(weights)}: the best, the one before until the next checkpoint is whole, one that is being saved"
        lines.append(DiskLine("best", 3 * weights + each * setup.critic, how + (" with the critic" if setup.critic else "")))
    if setup.critic:
        lines.append(DiskLine("critic", each * setup.critic, f"{weights_text(setup.critic)} x {each:g} B, beside final"))
    if setup.method and setup.method.value_pretrain_steps:
        fitted = 4.0 * setup.total + 12.0 * setup.critic
        lines.append(DiskLine("value", config.save_total_limit * fitted, "checkpoints of the critic's pre-training"))
    if setup.method and setup.method.engine and setup.method.engine.kind == "serve":
        lines.append(DiskLine("engine", 2 * 4.0 * setup.total, "weights handed to vllm serve, and the new ones beside them"))
    return lines
