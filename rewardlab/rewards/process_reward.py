"""What a frozen process reward model pays a rollout at the end of each step of its reasoning (arXiv 2410.17621)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardlab.config import RLConfig
from rewardlab.errors import CheckpointError
from rewardlab.metrics.running import Metric
from rewardlab.models.checkpoints import check_template
from rewardlab.models.loading import load_processor
from rewardlab.models.padding import PassLimits
from rewardlab.models.value_model import WEIGHTS, ValueModel, completion_values
from rewardlab.prompts import Template
from rewardlab.rewards.steps import judgment_steps, process_rewards, step_counts, token_ends
from rewardlab.samplers.hf import token_texts


def step_tokens(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Where in a completion's tokens the steps of its reasoning end; none where it has no closed reasoning."""
    texts = token_texts(tokenizer, ids)
    return token_ends(judgment_steps("".join(texts)), texts)


class ProcessReward:
    """A process reward model that does not learn, and the weights of what it pays by outcome."""

    def __init__(self, model: ValueModel, tokenizer: Any, *, wrong_weight: float, right_weight: float) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.wrong_weight, self.right_weight = wrong_weight, right_weight

    @staticmethod
    def load(config: RLConfig, template: Template, tokenizer: Any, *, device: torch.device) -> ProcessReward:
        """The model that ``config.process_reward`` names. Raises CheckpointError unless it was made by ``rewardlab prm`` for
        this template and this tokenizer: it reads the policy's own tokens."""
        folder = Path(config.process_reward or "")
        check_template(folder, template)
        if not (folder / WEIGHTS).exists():
            raise CheckpointError(f"{folder}: not a process reward model (no {WEIGHTS} in it); train one with `rewardlab prm`")
        if load_processor(str(folder)).tokenizer.get_vocab() != tokenizer.get_vocab():
            raise CheckpointError(
                f"{folder}: has another tokenizer than the policy; train it from a model of the policy's family"
            )
        return ProcessReward(
            ValueModel.for_scoring(folder, device, attention=config.attn_implementation),
            tokenizer,
            wrong_weight=config.process_wrong_weight,
            right_weight=config.process_correct_weight,
        )

    def __call__(
        self,
        batch: dict[str, Any],
        right: Sequence[float],
        read: Sequence[bool],
        *,
        limits: PassLimits,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> tuple[Tensor, dict[str, float | Metric]]:
        """[N, T] rewards of a rollout batch, none but at step ends, and what to log. ``right`` is 1 for right rollouts; one
        whose verdict could not be ``read`` (cut off, none, two) earns nothing for its steps."""
        mask_NT = batch["completion_mask"]
        lengths = mask_NT.sum(1).tolist()
        ends = [
            step_tokens(self.tokenizer, ids[:length].tolist())
            for ids, length in zip(batch["completion_ids"], lengths, strict=True)
        ]
        counts_NT = step_counts([places if ok else [] for places, ok in zip(ends, read, strict=True)], mask_NT)
        scores_NT = completion_values(self.model, batch, limits=limits, autocast=autocast)[:, 1:]
        right_N = torch.tensor(right, device=mask_NT.device)
        weights = {"wrong_weight": self.wrong_weight, "right_weight": self.right_weight}
        rewards_NT = process_rewards(scores_NT, counts_NT, right_N, **weights)
        at_ends = counts_NT > 0
        scores = scores_NT[at_ends]
        metrics: dict[str, float | Metric] = {
            "process/steps": counts_NT.sum(1).mean().item(),
            "process/without_steps_frac": (counts_NT.sum(1) == 0).float().mean().item(),
            "process/reward": rewards_NT.sum(1).mean().item(),
        }
        if len(scores):
            metrics |= {
                "process/score": Metric(scores.mean().item(), len(scores)),
                "process/clamped_frac": Metric((scores.abs() > 1).float().mean().item(), len(scores)),
            }
        return rewards_NT, metrics
