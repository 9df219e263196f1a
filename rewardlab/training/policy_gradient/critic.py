"""The critic of PPO, VC-PPO, VAPO and T-PPO: a part of the policy's module, with a learning rate of its own.

It runs within the policy's forward pass, so that DDP and ZeRO see one module, one optimizer and one backward pass; it is saved
beside the policy, never in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import FusedCausalLMOutput

from rewardlab.models.families import FORWARD_KEYS
from rewardlab.models.value_model import ValueModel
from rewardlab.training.run.folder import CRITIC
from rewardlab.training.run.whole_weights import whole_parts

PREFIX = f"{CRITIC}."
_INPUTS = ("input_ids", "attention_mask", *FORWARD_KEYS)


@dataclass
class OutputWithValues(FusedCausalLMOutput):
    """A policy's output, and the critic's value after each token [N, L]."""

    state_values: Tensor | None = None


class CriticHook:
    """Runs the critic after the policy's forward pass, or ``alone`` instead of it, while values are collected.

    The values stand in the module's output: DDP takes weights that the output does not lead to for unused.
    """

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
    """Yield the critic of a policy, to be read by itself. Under FSDP2 its weights are whole meanwhile; those outside its layers
    belong to the policy's own part."""
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
