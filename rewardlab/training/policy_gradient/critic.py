"""The methods with a critic: PPO, VC-PPO, VAPO.

The critic is a part of the policy's module and runs within its forward pass, so that DDP and ZeRO see one module, one optimizer
and one backward pass; it is saved beside the policy, never in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from trl.trainer.utils import FusedCausalLMOutput

from rewardlab.metrics.running import Mean
from rewardlab.models.families import FORWARD_KEYS
from rewardlab.models.value_model import ValueModel, completion_values
from rewardlab.rl.gae import explained_variance_of, gae, length_adaptive_lambda, value_sums, value_targets
from rewardlab.rl.objectives import clipped_value_loss
from rewardlab.training.policy_gradient.trainer import PolicyGradientTrainer
from rewardlab.training.run.folder import CRITIC

PREFIX = f"{CRITIC}."
_FOR_CRITIC = ("input_ids", "attention_mask", *FORWARD_KEYS)


@dataclass
class WithValues(FusedCausalLMOutput):  # type: ignore[misc]
    """A policy's output, and what the critic says after each token [N, L]."""

    state_values: Tensor | None = None


class ActorCriticTrainer(PolicyGradientTrainer):
    """Token-level advantages by a critic. ``value_only`` fits the critic alone, on rollouts of a policy that stays as it is."""

    kept_elsewhere = (PREFIX,)

    def __init__(self, *args: Any, critic: ValueModel, value_only: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.value_only = value_only
        if value_only:
            self.model.requires_grad_(False)
        self._seen_values: list[Tensor] | None = None
        self.model.add_module(CRITIC, critic.to(self.model.device))
        self.model.register_forward_hook(self._run_critic, with_kwargs=True)

    @property
    def critic(self) -> ValueModel:
        return self.accelerator.unwrap_model(self.model).critic  # type: ignore[no-any-return]

    def _run_critic(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """After the policy's forward pass, within that of the module both are part of, and told in its output: DDP takes
        weights that the output does not lead to for unused."""
        if self._seen_values is None:
            return None
        with self.accelerator.autocast():
            values_NL = module.critic(**{key: kwargs[key] for key in _FOR_CRITIC if key in kwargs})
        self._seen_values.append(values_NL)
        return WithValues(**output, state_values=values_NL)

    def _values(self, batch: dict[str, Any]) -> Tensor:
        """[N, T] values of the states before each completion token, without gradient, in micro-batches."""
        size, autocast = self.args.per_device_train_batch_size, self.accelerator.autocast
        return completion_values(self.critic, batch, size=size, autocast=autocast)[:, :-1] * batch["completion_mask"]

    def _advantages(
        self, batch: dict[str, Any], inputs: list[dict[str, Any]], rewards_N: Tensor, own: slice
    ) -> tuple[Tensor, dict[str, float]]:
        args, mask_NT, finished_N = self.args, batch["completion_mask"], self.finished(batch)
        values_NT, segments = self._values(batch), self.segments(batch)
        rewards_NT = self._token_rewards(batch, rewards_N[own].nan_to_num(), mask_NT)
        known_N = finished_N * batch["loss_mask"].any(1)  # what the critic may be fitted to
        lam: float | Tensor = args.gae_lambda
        if args.length_alpha is not None:
            own_NT = torch.stack(segments).sum(0)  # without the user's turns
            lam = length_adaptive_lambda(own_NT.sum(1), alpha=args.length_alpha)
        raw_NT, targets_NT, value_mask_NT = (torch.zeros_like(values_NT) for _ in range(3))
        for segment_NT in segments:
            raw_NT += gae(rewards_NT, values_NT, segment_NT, lam=lam, finished_N=finished_N)
            targets_NT += value_targets(rewards_NT, values_NT, segment_NT, lam=args.gae_lambda_critic)
            value_mask_NT += segment_NT * known_N[:, None]
        batch |= {"old_values": values_NT, "value_targets": targets_NT, "value_mask": value_mask_NT}
        advantages_NT, metrics = torch.zeros_like(raw_NT), self._by_position(raw_NT, batch["loss_mask"])
        for role, role_mask_NT in self.roles(batch).items():
            whitened_NT, treated = self._whitened(raw_NT, role_mask_NT)
            advantages_NT += whitened_NT
            metrics |= {f"{role}{name}": Mean(value, role_mask_NT.sum()) for name, value in treated.items()}
        sums_5 = value_sums(values_NT, targets_NT, value_mask_NT)  # of all processes: all must stop pre-training at once
        explained = explained_variance_of(self.accelerator.reduce(sums_5, reduction="sum"))
        if explained is not None:  # of rollouts the critic has not been fitted to yet
            metrics["value/explained_variance"] = explained
        return advantages_NT, metrics

    def segments(self, batch: dict[str, Any]) -> list[Tensor]:
        """Masks [N, T] of the stretches over which a reward is carried back: the whole completion."""
        return [batch["completion_mask"]]

    def roles(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Masks [N, T] of the tokens whose advantages are whitened together, by a prefix for their metrics: all."""
        return {"": batch["loss_mask"]}

    def finished(self, batch: dict[str, Any]) -> Tensor:
        """[N] 1 for rollouts that will not be continued."""
        return torch.ones_like(batch["completion_mask"][:, 0])

    @staticmethod
    def _by_position(advantages_NT: Tensor, mask_NT: Tensor) -> dict[str, float]:
        """Mean bare advantage of the first and last tenth of each rollout: far from 0, the critic is biased by position."""
        place_NT = (mask_NT.cumsum(1) - 1) / mask_NT.sum(1, keepdim=True).clamp(min=1)
        first_NT, last_NT = mask_NT * (place_NT < 0.1), mask_NT * (place_NT >= 0.9)
        return {
            f"advantage/{part}_tenth": Mean((advantages_NT * own_NT).sum() / own_NT.sum().clamp(min=1), own_NT.sum())
            for part, own_NT in (("first", first_NT), ("last", last_NT))
        }

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._seen_values = []
        try:
            policy_loss = super()._compute_loss(model, inputs)
            width = inputs["completion_ids"].size(1)
            values_NT = torch.cat(self._seen_values)[:, -width - 1 : -1]
        finally:
            self._seen_values = None
        token_loss_NT = clipped_value_loss(values_NT, inputs["old_values"], inputs["value_targets"], self.args.value_clip)
        numbers = inputs["num_value_tokens"], inputs["num_value_rows"]
        value_loss = self.averaged(token_loss_NT, inputs["value_mask"], *numbers)
        self._count({"value/loss": value_loss.item() * self.current_gradient_accumulation_steps})
        return value_loss + policy_loss * (not self.value_only)

    def finish_batch(self, batch: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
        super().finish_batch(batch, inputs)
        batch["num_value_tokens"], batch["num_value_rows"] = self.totals(batch["value_mask"])

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """TRL's optimizer, the critic's weights in groups of their own rate."""
        optimizer = super().create_optimizer(model)
        rate = self.args.value_learning_rate or self.args.learning_rate
        critics = {id(weight) for weight in self.critic.parameters()}
        for group in list(optimizer.param_groups):
            own = [weight for weight in group["params"] if id(weight) in critics]
            group["params"] = [weight for weight in group["params"] if id(weight) not in critics]
            if own:
                optimizer.add_param_group({**group, "params": own, "lr": rate})
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        """Policy and critic each to max_grad_norm: a critic far off must not shrink the policy's step (ZeRO clips jointly)."""
        if self.is_deepspeed_enabled:
            return super()._clip_grad_norm(model)
        named = list(self.accelerator.unwrap_model(model).named_parameters())
        limit = self.args.max_grad_norm
        critic_norm = self.accelerator.clip_grad_norm_([w for name, w in named if name.startswith(PREFIX)], limit)
        self._count({"value/grad_norm": float(critic_norm)})
        return self.accelerator.clip_grad_norm_([w for name, w in named if not name.startswith(PREFIX)], limit)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """The policy as ever, unless it stays as it is; the critic in a folder beside its weights."""
        state = self.accelerator.unwrap_model(self.model).state_dict() if state_dict is None else state_dict
        if not self.value_only:
            super()._save(output_dir, {name: value for name, value in state.items() if not name.startswith(PREFIX)})
        if self.args.should_save:
            own = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
            self.critic.save(Path(output_dir or self.args.output_dir) / CRITIC, own)

    def load_weights(self, model: Any, checkpoint: str) -> None:
        if not self.value_only:
            super().load_weights(model, checkpoint)
        critic = ValueModel.from_pretrained(str(Path(checkpoint) / CRITIC))
        model.critic.load_state_dict(critic.state_dict())


class StopAtPlateau(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Ends value pre-training once the explained variance of fresh rollouts has not risen for ``patience`` batches of them.

    More of it is not better: a critic fitted for long to one frozen policy overfits it (VC-PPO, arXiv 2503.01491).
    """

    def __init__(self, patience: int, least: float = 0.01) -> None:
        self._patience, self._least = patience, least
        self._best, self._since = float("-inf"), 0

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on with."""
        return {
            "args": {"patience": self._patience, "least": self._least},
            "attributes": {"_best": self._best, "_since": self._since},
        }

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        explained = (logs or {}).get("value/explained_variance")
        if explained is None:
            return
        if explained > self._best + self._least:
            self._best, self._since = explained, 0
        else:
            self._since += 1
        control.should_training_stop |= self._since >= self._patience
