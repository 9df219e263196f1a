"""StableReinforce on TRL's GRPOTrainer (arXiv 2505.02835): three overrides, each where TRL has one place for it.

* advantages: REINFORCE++'s, over tokens, whitened over the global batch, then filtered; in place of the group-relative ones;
* KL: k1 in the reward, in place of TRL's k3 in the loss;
* pre-clip: the log-ratio is clamped before TRL exponentiates it.

Images, M-RoPE positions and truncation are TRL's: every forward gets the pixel values. ``rl/reference.py`` is the same step
without a library; a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
import numpy as np
import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from rewardlab.rl.advantages import Moments, returns_to_go, sigma_filter, token_rewards, whiten
from rewardlab.rl.objectives import outside, preclip
from rewardlab.samplers.decode import draw
from rewardlab.samplers.hf import vision_token_ids
from rewardlab.training.runs import LoadsWholeCheckpoints

_FORWARD_KEYS = ("pixel_values", "image_grid_thw", "mm_token_type_ids", "token_type_ids", "num_images")


@dataclass
class StableReinforceConfig(GRPOConfig):
    """GRPOConfig plus the method's own numbers. One sample per prompt is allowed: no group is needed."""

    preclip_min: float = field(default=1e-3, metadata={"help": "lower bound of the probability ratio before exp"})
    preclip_max: float = field(default=1e3, metadata={"help": "upper bound of the probability ratio before exp"})
    advantage_sigma: float = field(default=3.0, metadata={"help": "whitened advantages beyond this are set to 0"})

    def __post_init__(self) -> None:
        asked = self.num_generations
        if asked == 1:  # TRL refuses 1 because of its group baseline; this trainer has none
            self.num_generations = 2
        super().__post_init__()
        self.num_generations = asked


def left_padded(prompt_ids: list[list[int]], fields: dict[str, Any], pad: int) -> dict[str, Tensor]:
    """Prompts of different length as one batch; per-token fields are padded alike, per-image ones are taken as they are."""
    width = max(map(len, prompt_ids))

    def rows(values: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([[filler] * (width - len(row)) + list(row) for row in values])

    batch = {"input_ids": rows(prompt_ids, pad), "attention_mask": rows([[1] * len(ids) for ids in prompt_ids], 0)}
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            batch[name] = rows(value, 0)
        else:
            batch[name] = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    return batch


class StableReinforceTrainer(LoadsWholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with REINFORCE++ advantages, 3-sigma filter and pre-clip."""

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _count(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics[self._mode][name].append(value)

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], Any]:
        """Rollouts by the sampler's own decoder, which is the one that benchmarks and serves the judge; vLLM where asked."""
        if self.use_vllm:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        inputs = left_padded(prompt_ids, multimodal_fields, self._tokenizer.pad_token_id)
        inputs = {name: value.to(self.accelerator.device) for name, value in inputs.items()}
        with (
            unwrap_model_for_generation(
                self.model_wrapped, self.accelerator, gather_deepspeed3_params=self.args.ds3_gather_for_generation
            ) as policy,
            torch.no_grad(),
        ):
            draws = draw(
                policy,
                inputs,
                num_draws=1,
                max_tokens=self.max_completion_length,
                temperature=self.temperature,
                top_p=self.top_p,
                ends=frozenset(self.eos_token_ids),
                suppress=vision_token_ids(policy),
            )
        return draws.tokens, None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """[global N, functions]; kept, because TRL hands on only the advantages it makes of them."""
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        advantages_NT, metrics = self._advantages(batch)
        self._count(metrics)
        batch["advantages"] = advantages_NT
        return batch

    def _advantages(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
        mask_NT = batch["completion_mask"]
        start = self.accelerator.process_index * len(mask_NT)
        rewards_N = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)[start : start + len(mask_NT)]
        kl_NT = self._kl(batch) if self.beta else None
        returns_NT = returns_to_go(token_rewards(rewards_N, mask_NT, kl_NT, self.beta), mask_NT)
        moments = Moments(self.accelerator.reduce(Moments.of(returns_NT, mask_NT).values_3, reduction="sum"))
        advantages_NT, metrics = sigma_filter(whiten(returns_NT, mask_NT, moments), mask_NT, self.args.advantage_sigma)
        if kl_NT is not None:
            metrics["kl/sampled_k1"] = ((kl_NT * mask_NT).sum() / mask_NT.sum()).item()
        return advantages_NT, metrics

    def _kl(self, batch: dict[str, Any]) -> Tensor:
        """k1 per token of the policy that sampled against the reference [N, T]."""
        old_NT = batch.get("old_per_token_logps")
        if old_NT is None:  # TRL skips them where no update lies between sampling and training
            with torch.no_grad():
                old_NT = self._get_per_token_logps_and_entropies(
                    self.model,
                    torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
                    torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
                    batch["completion_ids"].size(1),
                    batch_size=self.args.per_device_train_batch_size,
                    **{key: batch[key] for key in _FORWARD_KEYS if key in batch},
                )[0]
        return old_NT - batch["ref_per_token_logps"]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        beta, self.beta = self.beta, 0.0  # the KL term is in the reward already
        self._old_logprobs = inputs.get("old_per_token_logps")
        self._loss_mask = inputs["completion_mask"]
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.beta, self._old_logprobs, self._loss_mask = beta, None, None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """TRL's log-probs; inside the loss, moved so that ``new - old`` is the pre-clipped log-ratio."""
        logprobs, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        old = getattr(self, "_old_logprobs", None)
        if old is not None:
            bounds = (self.args.preclip_min, self.args.preclip_max)
            self._count({"loss/preclip_frac": outside(logprobs.detach(), old, self._loss_mask, bounds)})
            logprobs = old + preclip(logprobs, old, bounds)
        return (logprobs, *rest)
