"""The methods on TRL's GRPOTrainer: StableReinforce, REINFORCE++, GRPO, Dr. GRPO, DAPO, RLOO and their mixtures.

TRL brings images, M-RoPE positions, log-probs, the schedule and the distribution; the arithmetic is that of ``rewardlab/rl``,
called from two places: advantages after the rewards are known, and the loss. ``rl/reference.py`` is the same step without
a library; a test holds the two equal for every recipe.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from rewardlab.models.families import FORWARD_KEYS
from rewardlab.rewards.process_reward import ProcessReward
from rewardlab.rl.advantages import Moments, filter_outliers, returns_to_go, token_rewards, weights, whiten
from rewardlab.rl.groups import centered, fill_unscored, group_ids, leave_one_out, standardized, varying_frac
from rewardlab.rl.kl import ESTIMATORS, k1
from rewardlab.rl.objectives import (
    finite_ratio,
    importance_weights,
    mean_of_tokens,
    positive_nll,
    ppo_clip,
    preclip,
    preclip_fraction,
    sequence_log_ratio,
    sum_of_sequence_means,
    sum_over_constant,
)
from rewardlab.training.policy_gradient.rollouts.whole import RolloutTrainer

RELATIVE = {"grpo": standardized, "dr_grpo": centered, "rloo": leave_one_out}


class PolicyGradientTrainer(RolloutTrainer):
    """The advantages and the loss of ``args``, critic-free ones; ``actor_critic.py`` adds those of a critic.

    ``process`` pays at the ends of steps, beside the outcome.
    """

    process: ProcessReward | None = None

    drops_unscored = True  # rollouts that no reward function scored are left out of the update

    def finish_batch(self, batch: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
        own, weights = self._own(len(inputs)), self.reward_weights.to(self._rewards.device)
        rewards_N = (self._rewards * weights).nansum(1)
        unscored_N = self._rewards.isnan().all(1)
        if self.drops_unscored:
            rewards_N = rewards_N.masked_fill(unscored_N, torch.nan)
            batch["loss_mask"] = batch["loss_mask"] * ~unscored_N[own][:, None]
            self._count({"reward/unscored_frac": unscored_N.float().mean().item()})
        batch["advantages"], metrics = self._advantages(batch, inputs, rewards_N, own)
        if self.args.positive_nll:
            batch |= self._right_ones(batch["loss_mask"])
        self._count(metrics, batch["loss_mask"].sum())

    def _advantages(
        self, batch: dict[str, Any], inputs: list[dict[str, Any]], rewards_N: Tensor, own: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """[own N, T] and what became of outliers; ``rewards_N`` are those of all processes, nan where there is none."""
        mask_NT, method = batch["loss_mask"], self.args.advantage
        metrics: dict[str, float] = {}
        if method != "reinforce_pp":
            # ``draw`` tells two groups of one prompt apart, which dynamic sampling makes, whole and in one process.
            here = self.accelerator.process_index
            keys = [(f"{row['pair_id']} {(here, row['draw']) if 'draw' in row else ''}", row["order"]) for row in inputs]
            pairs, orders = zip(*gather_object(keys), strict=True)
            groups_N = group_ids(pairs, orders).to(rewards_N.device)
            rewards_N = fill_unscored(rewards_N, groups_N)
            metrics["advantage/varying_groups_frac"] = varying_frac(rewards_N, groups_N)
        if method in RELATIVE:
            return RELATIVE[method](rewards_N, groups_N)[own][:, None] * mask_NT, metrics
        if method == "reinforce_pp_baseline":
            rewards_N = centered(rewards_N, groups_N)
        returns_NT = returns_to_go(self._token_rewards(batch, rewards_N[own].nan_to_num(), mask_NT), mask_NT)
        advantages_NT, treated = self._whitened(returns_NT, mask_NT)
        return advantages_NT, metrics | treated

    def _token_rewards(self, batch: dict[str, Any], rewards_N: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T] the reward on the last token, what the steps earn, less each token's KL penalty where the method takes it."""
        kl_NT = None
        if self.beta and self.args.kl == "k1_reward":
            kl_NT = self._kl(batch)
            self._count({"kl/sampled_k1": mean_of_tokens(kl_NT, mask_NT).item()}, mask_NT.sum())
        rewards_NT = token_rewards(rewards_N, mask_NT, kl_NT, self.beta)
        if self.process is None:
            return rewards_NT
        size, autocast = self.args.per_device_train_batch_size, self.accelerator.autocast
        steps_NT, metrics = self.process(batch, self._right, self._read, size=size, autocast=autocast)
        self._count(metrics)
        return rewards_NT + steps_NT * mask_NT

    def _whitened(self, values_NT: Tensor, mask_NT: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Whitened over the tokens, or the rollouts, of all processes; outliers treated."""
        own = Moments.of(values_NT, weights(mask_NT, self.args.whiten_by))
        moments = Moments(self.accelerator.reduce(own.values_3, reduction="sum"))
        return filter_outliers(whiten(values_NT, mask_NT, moments), mask_NT, self.args.sigma, self.args.outliers)

    def _right_ones(self, mask_NT: Tensor) -> dict[str, Tensor]:
        """``right`` [own N], 1 for right rollouts, and how many tokens those of all processes have."""
        right_N = torch.tensor(self._right, device=mask_NT.device)
        tokens = self.accelerator.reduce((mask_NT * right_N[:, None]).sum(), reduction="sum")
        return {"right": right_N, "num_right_tokens": tokens}

    def _kl(self, batch: dict[str, Any]) -> Tensor:
        """k1 per token of the policy that sampled against the reference [N, T].

        TRL leaves out the old log-probs where no update lies between sampling and training; the sampler's are the same (a
        test holds it), and an engine's, which may differ, are computed again.
        """
        old_NT, ref_NT = batch.get("old_per_token_logps"), batch["ref_per_token_logps"]
        if old_NT is None and (self.use_vllm or self.engine):
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
            **{key: batch[key] for key in FORWARD_KEYS if key in batch},
        )
        return logprobs_NT, entropies_NT

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        args, mask_NT, advantages_NT = self.args, inputs["loss_mask"], inputs["advantages"]
        tokens = mask_NT.sum()
        logprobs_NT, entropies_NT = self._logprobs(model, inputs)
        old_NT = inputs.get("old_per_token_logps")
        old_NT = logprobs_NT.detach() if old_NT is None else old_NT
        log_ratio_NT = logprobs_NT - old_NT
        if args.preclip_min is not None:
            bounds = (args.preclip_min, args.preclip_max)
            self._count({"loss/preclip_frac": preclip_fraction(logprobs_NT.detach(), old_NT, mask_NT, bounds)}, tokens)
            log_ratio_NT = preclip(logprobs_NT, old_NT, bounds)
        if args.ratio == "sequence":
            log_ratio_NT = sequence_log_ratio(log_ratio_NT, mask_NT)
        ratio_NT = finite_ratio(log_ratio_NT)
        loss_NT = ppo_clip(ratio_NT, advantages_NT, args.epsilon, args.clip_high, args.dual_clip)
        if args.importance_cap and "sampling_per_token_logps" in inputs:
            weights_NT, metrics = importance_weights(old_NT, inputs["sampling_per_token_logps"], mask_NT, args.importance_cap)
            self._count(metrics, tokens)
            loss_NT = loss_NT * weights_NT
        if self.beta and args.kl != "k1_reward":
            kl_NT = ESTIMATORS[args.kl.removesuffix("_loss")](logprobs_NT, inputs["ref_per_token_logps"])
            self._count({"kl/loss": mean_of_tokens(kl_NT.detach(), mask_NT).item()}, tokens)
            loss_NT = loss_NT + self.beta * kl_NT
        clipped_NT = (ratio_NT < 1 - args.epsilon) | (ratio_NT > 1 + (args.clip_high or args.epsilon))
        self._count(
            {
                "loss/clip_frac": mean_of_tokens(clipped_NT.float(), mask_NT).item(),
                "entropy": mean_of_tokens(entropies_NT.detach(), mask_NT).item(),
            },
            tokens,
        )
        return self._averaged(loss_NT, logprobs_NT, inputs)

    def _averaged(self, loss_NT: Tensor, logprobs_NT: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The share of this micro-batch in the loss of its optimizer step."""
        total = self.averaged(loss_NT, inputs["loss_mask"], inputs["num_items_in_batch"], inputs["num_rows"])
        if self.args.positive_nll:
            nll = positive_nll(logprobs_NT, inputs["loss_mask"], inputs["right"], inputs["num_right_tokens"])
            total = total + self.args.positive_nll * nll * self._minibatches * self.accelerator.num_processes
        return total

    @property
    def _parts(self) -> int:
        """Micro-batches in one optimizer step."""
        return self.current_gradient_accumulation_steps if self.model.training else 1

    @property
    def _minibatches(self) -> float:
        """Optimizer steps per rollout batch (in one pass over it)."""
        return self.args.steps_per_generation / self._parts

    def averaged(self, values_NT: Tensor, mask_NT: Tensor, num_tokens: Tensor, num_rows: Tensor) -> Tensor:
        """A micro-batch's share in the mean that ``args.average`` names; the numbers are those of the whole rollout batch.

        By token, every token of the rollout batch weighs the same, and by sequence every rollout that has any: neither
        micro-batches nor minibatches of short rollouts, nor of few, count for more.
        """
        share = self._minibatches * self.accelerator.num_processes
        if self.args.average == "token":
            return (values_NT * mask_NT).sum() * share / num_tokens.clamp(min=1)
        if self.args.average == "constant":
            return sum_over_constant(values_NT, mask_NT, self.max_completion_length) / self._parts
        return sum_of_sequence_means(values_NT, mask_NT) * share / num_rows.clamp(min=1)
