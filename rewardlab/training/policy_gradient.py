"""The critic-free methods on TRL's GRPOTrainer: StableReinforce, REINFORCE++, GRPO, Dr. GRPO, DAPO, RLOO and their mixtures.

TRL brings images, M-RoPE positions, log-probs, the schedule and the distribution; the arithmetic is that of ``rewardlab/rl``,
called from two overrides: advantages after the rewards are known, and the loss. ``rl/reference.py`` is the same step without
a library; a test holds the two equal for every recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation

from rewardlab.rl.advantages import Moments, returns_to_go, token_rewards, treat_outliers, whiten
from rewardlab.rl.groups import centered, group_ids, leave_one_out, standardized, varying_frac
from rewardlab.rl.kl import ESTIMATORS, k1
from rewardlab.rl.objectives import (
    mean_of_sequence_means,
    mean_of_tokens,
    outside,
    ppo_clip,
    preclip,
    sequence_log_ratio,
    sum_over_constant,
)
from rewardlab.samplers.decode import HotToken, draw
from rewardlab.samplers.hf import vision_token_ids
from rewardlab.training.orders_together import OrdersTogether
from rewardlab.training.runs import LoadsWholeCheckpoints

RELATIVE = {"grpo": standardized, "dr_grpo": centered, "rloo": leave_one_out}
_FORWARD_KEYS = ("pixel_values", "image_grid_thw", "mm_token_type_ids", "token_type_ids", "num_images")


@dataclass
class PolicyGradientConfig(GRPOConfig):
    """GRPOConfig plus the method. One sample per prompt is allowed where no group is needed."""

    advantage: str = field(default="reinforce_pp", metadata={"help": "reinforce_pp[_baseline], grpo, dr_grpo, rloo"})
    outliers: str = field(default="delete", metadata={"help": "whitened advantages beyond sigma: delete, clip or keep"})
    sigma: float = field(default=3.0, metadata={"help": "how many deviations are beyond"})
    preclip_min: float | None = field(default=1e-3, metadata={"help": "lower bound of the ratio before exp; None: no pre-clip"})
    preclip_max: float = field(default=1e3, metadata={"help": "upper bound of the ratio before exp"})
    clip_high: float | None = field(default=None, metadata={"help": "upper clip; None: the same as epsilon"})
    dual_clip: float | None = field(default=None, metadata={"help": "bound on the loss of tokens of negative advantage"})
    ratio: str = field(default="token", metadata={"help": "token or sequence"})
    average: str = field(default="sequence", metadata={"help": "sequence, token or constant"})
    kl: str = field(default="k1_reward", metadata={"help": "k1_reward, k2_loss or k3_loss"})
    positive_nll: float = field(default=0.0, metadata={"help": "weight of the likelihood of right rollouts"})
    orders_together: bool = field(default=False, metadata={"help": "both orders of a pair in one rollout batch"})

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


class PolicyGradientTrainer(LoadsWholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with the advantages and the loss of ``args``.

    ``right_of_last_batch`` tells which of this process's last rollouts were right, for methods that ask.
    """

    right_of_last_batch: Callable[[], list[float]]
    hot_token: HotToken | None = None

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
                hot=self.hot_token,
            )
        self._drawn_logprobs = draws.logprobs
        return draws.tokens, None

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        if not self.args.orders_together:
            return super()._get_train_sampler(dataset)
        return OrdersTogether(
            len(dataset or self.train_dataset),
            batch=self.args.generation_batch_size // self.num_generations,
            group=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """[global N, functions]; kept, because TRL hands on only the advantages it makes of them."""
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        mask_NT = batch["completion_mask"]
        start = self.accelerator.process_index * len(mask_NT)
        own = slice(start, start + len(mask_NT))
        rewards_N = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)
        batch["advantages"], metrics = self._advantages(batch, inputs, rewards_N, own)
        if self.args.positive_nll:
            batch["nll_weights"] = self._nll_weights(inputs, mask_NT)
        self._count(metrics)
        return batch

    def _advantages(
        self, batch: dict[str, Any], inputs: list[dict[str, Any]], rewards_N: Tensor, own: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """[own N, T] and what became of outliers; ``rewards_N`` are those of all processes."""
        mask_NT, method = batch["completion_mask"], self.args.advantage
        if method != "reinforce_pp":
            keys = gather_object([(row["pair_id"], row["order"]) for row in inputs])
            pairs, orders = zip(*keys, strict=True)
            groups_N = group_ids(pairs, orders).to(rewards_N.device)
            metrics = {"advantage/varying_groups_frac": varying_frac(rewards_N, groups_N)}
        if method in RELATIVE:
            return RELATIVE[method](rewards_N, groups_N)[own][:, None] * mask_NT, metrics
        if method == "reinforce_pp_baseline":
            rewards_N = centered(rewards_N, groups_N)
        kl_NT = self._kl(batch) if self.beta and self.args.kl == "k1_reward" else None
        returns_NT = returns_to_go(token_rewards(rewards_N[own], mask_NT, kl_NT, self.beta), mask_NT)
        moments = Moments(self.accelerator.reduce(Moments.of(returns_NT, mask_NT).values_3, reduction="sum"))
        advantages_NT, metrics = treat_outliers(
            whiten(returns_NT, mask_NT, moments), mask_NT, self.args.sigma, self.args.outliers
        )
        if kl_NT is not None:
            metrics["kl/sampled_k1"] = ((kl_NT * mask_NT).sum() / mask_NT.sum()).item()
        return advantages_NT, metrics

    def _nll_weights(self, inputs: list[dict[str, Any]], mask_NT: Tensor) -> Tensor:
        """[own N] 1 by the number of tokens of right rollouts, of all processes, for those that are right; 0 for the rest."""
        right_N = torch.tensor(self.right_of_last_batch(), device=mask_NT.device)
        tokens = self.accelerator.reduce((mask_NT * right_N[:, None]).sum(), reduction="sum")
        return right_N / tokens.clamp(min=1)

    def _kl(self, batch: dict[str, Any]) -> Tensor:
        """k1 per token of the policy that sampled against the reference [N, T].

        TRL leaves out the old log-probs where no update lies between sampling and training; the sampler's are the same (a
        test holds it), and an engine's, which may differ, are computed again.
        """
        old_NT, ref_NT = batch.get("old_per_token_logps"), batch["ref_per_token_logps"]
        if old_NT is None and self.use_vllm:
            with torch.no_grad():
                old_NT = self._logprobs(self.model, batch, self.args.per_device_train_batch_size)[0]
        elif old_NT is None:
            old_NT = torch.zeros_like(ref_NT)
            for row, logprobs in enumerate(self._drawn_logprobs):
                old_NT[row, : len(logprobs)] = torch.tensor(logprobs)
        return k1(old_NT, ref_NT)

    def _logprobs(self, model: Any, batch: dict[str, Any], batch_size: int | None = None) -> tuple[Tensor, Tensor]:
        """Log-probs of the completions and the entropies there [N, T], seen with their images."""
        logprobs_NT, entropies_NT, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].size(1),
            batch_size=batch_size,
            compute_entropy=True,
            **{key: batch[key] for key in _FORWARD_KEYS if key in batch},
        )
        return logprobs_NT, entropies_NT

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        args, mask_NT, advantages_NT = self.args, inputs["completion_mask"], inputs["advantages"]
        logprobs_NT, entropies_NT = self._logprobs(model, inputs)
        old_NT = inputs.get("old_per_token_logps")
        old_NT = logprobs_NT.detach() if old_NT is None else old_NT
        log_ratio_NT = logprobs_NT - old_NT
        if args.preclip_min is not None:
            bounds = (args.preclip_min, args.preclip_max)
            self._count({"loss/preclip_frac": outside(logprobs_NT.detach(), old_NT, mask_NT, bounds)})
            log_ratio_NT = preclip(logprobs_NT, old_NT, bounds)
        if args.ratio == "sequence":
            log_ratio_NT = sequence_log_ratio(log_ratio_NT, mask_NT)
        ratio_NT = log_ratio_NT.exp()
        loss_NT = ppo_clip(ratio_NT, advantages_NT, args.epsilon, args.clip_high, args.dual_clip)
        if self.use_vllm and "importance_sampling_ratio" in inputs:
            loss_NT = loss_NT * inputs["importance_sampling_ratio"]
        if self.beta and args.kl != "k1_reward":
            kl_NT = ESTIMATORS[args.kl.removesuffix("_loss")](logprobs_NT, inputs["ref_per_token_logps"])
            self._count({"kl/loss": mean_of_tokens(kl_NT.detach(), mask_NT).item()})
            loss_NT = loss_NT + self.beta * kl_NT
        clipped_NT = (ratio_NT < 1 - args.epsilon) | (ratio_NT > 1 + (args.clip_high or args.epsilon))
        self._count(
            {
                "loss/clip_frac": mean_of_tokens(clipped_NT.float(), mask_NT).item(),
                "entropy": mean_of_tokens(entropies_NT.detach(), mask_NT).item(),
            }
        )
        return self._averaged(loss_NT, logprobs_NT, inputs)

    def _averaged(self, loss_NT: Tensor, logprobs_NT: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The share of this micro-batch in the loss of its optimizer step."""
        mask_NT, parts = inputs["completion_mask"], self.current_gradient_accumulation_steps if self.model.training else 1
        # Steps of the optimizer per rollout batch: by token, every token of the rollout batch weighs the same, so that
        # neither micro-batches nor minibatches of short rollouts count for more.
        minibatches = self.args.steps_per_generation / parts
        if self.args.average == "token":
            tokens = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
            total = (loss_NT * mask_NT).sum() / (tokens / minibatches)
        elif self.args.average == "constant":
            total = sum_over_constant(loss_NT, mask_NT, self.max_completion_length) / parts
        else:
            total = mean_of_sequence_means(loss_NT, mask_NT) / parts
        if self.args.positive_nll:
            nll = -(logprobs_NT * mask_NT * inputs["nll_weights"][:, None]).sum()
            total = total + self.args.positive_nll * nll * minibatches * self.accelerator.num_processes
        return total
