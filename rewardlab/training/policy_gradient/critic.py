"""The critic of PPO, VC-PPO, VAPO and T-PPO: a part of the policy's module, with a learning rate of its own.

It runs within the policy's forward pass, so that DDP and ZeRO see one module, one optimizer and one backward pass; it is saved
beside the policy, never in it. Before RL it can be fitted to the policy as it is (value pretraining, VC-PPO, arXiv 2503.01491),
with a budget of steps and tokens of its own. The stopping rule reads the trainer's logs, so that a resumed fit stops alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.utils import FusedCausalLMOutput

from rewardlab.config import MethodConfig
from rewardlab.data.files import write_atomic
from rewardlab.errors import HealthError
from rewardlab.models.families import FORWARD_KEYS
from rewardlab.models.value_model import ValueModel
from rewardlab.processes import is_main
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.folder import CRITIC, FIT, micro_batch_size
from rewardlab.training.run.parallel import whole_parts
from rewardlab.training.run.watchdog import append_event

PREFIX = f"{CRITIC}."
_INPUTS = ("input_ids", "attention_mask", *FORWARD_KEYS)


@dataclass
class OutputWithValues(FusedCausalLMOutput):
    """A policy's output, and the critic's value after each token [N, L]."""

    state_values: Tensor | None = None


class CriticHook:
    """Runs the critic after the policy's forward pass, or ``alone`` instead of it, while values are collected. The values are
    part of the module's output: DDP would take the critic's weights for unused otherwise."""

    def __init__(
        self, model: Any, critic: ValueModel, autocast: Callable[[], AbstractContextManager[Any]], *, alone: bool = False
    ) -> None:
        """Add ``critic`` to ``model`` as a part of it."""
        self._autocast = autocast
        self._values: list[Tensor] | None = None
        model.add_module(CRITIC, critic.to(model.device))
        if not alone:
            model.register_forward_hook(self._run, with_kwargs=True)
            return
        policy_forward = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = self._run(model, args, kwargs, FusedCausalLMOutput())
            return policy_forward(*args, **kwargs) if output is None else output

        model.forward = forward

    def _run(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if self._values is None:
            return None
        with self._autocast():
            values_NL = module.critic(**{key: kwargs[key] for key in _INPUTS if key in kwargs})
        self._values.append(values_NL)
        return OutputWithValues(**output, state_values=values_NL)

    def collect(self, forward: Callable[[], Any]) -> tuple[Any, Tensor]:
        """Return what ``forward`` returns, and the values [N, L] of all sequences that the model read in it, with gradient."""
        self._values = []
        try:
            result = forward()
            return result, torch.cat(self._values)
        finally:
            self._values = None


@contextmanager
def whole_critic(model: Any, accelerator: Any) -> Iterator[ValueModel]:
    """Yield the critic of a policy. Under FSDP2 its weights are gathered meanwhile; those outside its layers belong to the
    policy's part."""
    policy = accelerator.unwrap_model(model)
    with whole_parts(policy, lambda name: name == "" or f"{name}.".startswith(PREFIX)):
        yield policy.critic


def split_optimizer_groups(optimizer: torch.optim.Optimizer, critic: ValueModel, learning_rate: float) -> None:
    """Move the critic's weights into parameter groups with a learning rate of their own."""
    critic_ids = {id(weight) for weight in critic.parameters()}
    for group in list(optimizer.param_groups):
        critic_weights = [weight for weight in group["params"] if id(weight) in critic_ids]
        group["params"] = [weight for weight in group["params"] if id(weight) not in critic_ids]
        if critic_weights:
            optimizer.add_param_group({**group, "params": critic_weights, "lr": learning_rate})


def without_critic(state: dict[str, Any]) -> dict[str, Any]:
    """Return the policy's part of a state dict."""
    return {name: value for name, value in state.items() if not name.startswith(PREFIX)}


def save_critic(critic: ValueModel, folder: Path, state: dict[str, Any]) -> None:
    """Write the critic into ``folder/critic``, from the state dict of the whole module."""
    weights = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
    critic.save(folder / CRITIC, weights)


RISE = 0.01  # of explained variance, from one mean to the next, that is none
FIT_SEED = 1_000_003  # added to the run's, for the prompts and draws of a fit
UNFITTED = "unfitted_critic"
EXPLAINED, GENERATED = "value/explained_variance", "tokens/generated"

Config = TypeVar("Config", bound=MethodConfig)


def critic_config(config: Config) -> Config:
    """Return the config under which the critic of ``config``'s method is fitted alone: a constant rate for
    ``value_pretrain_steps`` steps, and whole returns (lambda 1), as a new critic's own values are noise. Rollouts are whole
    even if the method has windows; there is no KL term, and another seed, so that RL begins with new rollouts. Raise
    ConfigError if ``value_pretrain_batch_size`` is no multiple of the number of processes.
    """
    policy = "warn" if config.health.policy == "warn" else "stop"  # of a frozen policy, going back would draw the same again
    if size := config.value_pretrain_batch_size:
        sizes = {"batch_size": size, "micro_batch_size": micro_batch_size(config.micro_batch_size, size)}
        config = config.model_copy(update=sizes)
    period = config.steps_of_rollouts  # checkpoints are at the end of a rollout batch
    changes = {
        "save_steps": -(-config.save_steps // period) * period,
        "seed": config.seed + FIT_SEED,
        "max_steps": config.value_pretrain_steps,
        "lr_scheduler": "constant",
        "warmup_steps": 0,
        "warmup_ratio": 0.0,
        "min_lr_ratio": 0.0,
        "value_learning_rate": config.value_learning_rate or 2 * config.learning_rate,
        "gae_lambda_critic": 1.0,
        "window": None,
        "kl_coef": 0.0,
        "importance": None,  # whoever sampled them, returns are returns
        "top_entropy": 1.0,
        "covariance": None,
        "logging_steps": 1,
        "health": config.health.model_copy(update={"policy": policy}),
    }
    return config.model_copy(update=changes)


@dataclass(frozen=True)
class StopRule:
    """The fit ends once the mean explained variance of the last ``patience`` rollout batches is at least ``minimum``, and has
    for ``patience`` batches in a row been at most :data:`RISE` above that of the ``patience`` batches before: a single batch
    varies by three times as much. A plateau below ``minimum``, such as every new critic's at 0, does not end it. A critic
    fitted for long to one frozen policy overfits it (VC-PPO).
    """

    minimum: float
    patience: int

    def mean(self, explained: Sequence[float]) -> float | None:
        """Return the mean of the last ``patience`` numbers, or of those there are; None of none."""
        last = explained[-self.patience :]
        return sum(last) / len(last) if last else None

    def stops(self, explained: Sequence[float]) -> bool:
        """Return whether the fit ends after batches of these explained variances, each measured before fitting to the batch."""
        last = self.mean(explained)
        if last is None or last < self.minimum or len(explained) < 3 * self.patience - 1:
            return False
        ends = range(len(explained) - self.patience + 1, len(explained) + 1)
        return all(self._rise(explained[:end]) <= RISE for end in ends)

    def _rise(self, explained: Sequence[float]) -> float:
        last, before = explained[-self.patience :], explained[-2 * self.patience : -self.patience]
        return (sum(last) - sum(before)) / self.patience


def rule_of(config: MethodConfig) -> StopRule:
    """Return the rule that ends the fit of ``config``'s critic."""
    return StopRule(config.health.min_explained_variance, config.value_patience)


def _series(history: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(row[name]) for row in history if row.get(name) is not None]


class StopAtPlateau(TrainerCallback):
    """Ends a fit by a :class:`StopRule`."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        control.should_training_stop |= self._rule.stops(_series(state.log_history, EXPLAINED))


@dataclass(frozen=True)
class CriticFit:
    """The result of a fit: ``steps`` of the optimizer, ``batches`` of rollouts, ``tokens`` generated by all processes, whether
    the rule ended it (``plateau``), and the mean ``explained_variance`` at the end; None if all returns were equal."""

    steps: int
    batches: int
    tokens: int
    plateau: bool
    explained_variance: float | None

    @staticmethod
    def of(state: TrainerState, rule: StopRule) -> CriticFit:
        """Read the fit from the logs of a trainer."""
        explained, tokens = _series(state.log_history, EXPLAINED), _series(state.log_history, GENERATED)
        return CriticFit(state.global_step, len(tokens), int(sum(tokens)), rule.stops(explained), rule.mean(explained))

    def __str__(self) -> str:
        explained = "unknown" if self.explained_variance is None else f"{self.explained_variance:.2f}"
        return (
            f"the critic was fitted in {self.steps:,} steps on {self.batches:,} rollout batches ({self.tokens:,} generated "
            f"tokens), until {'a plateau' if self.plateau else 'its budget was spent'}; explained variance {explained}"
        )

    def shortfall(self, minimum: float) -> str:
        """Return in a sentence that, and why, explained variance is below ``minimum``; "" where it is not."""
        if self.explained_variance is None:
            return (
                "the critic could not be fitted: in every rollout batch all returns were equal; take pairs that are neither "
                "too easy nor too hard for the model"
            )
        if self.explained_variance >= minimum:
            return ""
        return (
            f"the critic explains {self.explained_variance:.2f} of the variance of fresh rollouts' returns after "
            f"{self.steps:,} steps, less than health.min_explained_variance {minimum:g}; raise value_pretrain_steps or "
            "value_learning_rate"
        )


def record_fit(fit: CriticFit, config: MethodConfig, folder: Path) -> None:
    """Log the fit of a critic and write it to ``folder/fit.json``, a shortfall to ``health.jsonl`` too. Raise HealthError for a
    shortfall, unless the policy is to warn, or the critic is only a baseline (lambda 1)."""
    message = fit.shortfall(config.health.min_explained_variance)
    policy = "stop" if config.health.policy != "warn" and config.bootstraps else "warn"
    if is_main():
        log_line(str(fit))
        write_atomic(folder / FIT, json.dumps(asdict(fit), indent=1) + "\n")
        if message:
            append_event(folder, fit.steps, [UNFITTED], message, policy)
            log_line(f"step {fit.steps}: {message}")
    if message and policy != "warn":
        raise HealthError(f"{folder}: {message}, in another --out; or set `health: {{policy: warn}}` to train anyway")
