"""Truncated PPO (T-PPO, arXiv 2506.15050): a rollout grows by a window of tokens per step and is continued in the next one.

The policy is trained on each window at once, with EGAE's advantages where the rollout is not finished; the critic on whole
rollouts only, once their reward is known. So no step waits for the longest rollout, every sampled token is trained on once
by the policy, and once by the critic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rewardlab.models.families import select_fields
from rewardlab.training.policy_gradient.critic import ActorCriticTrainer
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource


class UnscoredRolloutsAreExpected(logging.Filter):
    """TRL warns of every batch with a rollout that no reward function scored; where some are not finished, that is the rule."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in str(record.msg)


logging.getLogger("trl.trainer.grpo_trainer").addFilter(UnscoredRolloutsAreExpected())


class WindowedTrainer(ActorCriticTrainer):
    """ActorCriticTrainer whose rollouts grow by ``args.window`` tokens; unfinished ones go ahead of new prompts."""

    drops_unscored = False  # an unfinished rollout has no reward yet, and is trained on

    def __init__(self, *args: Any, source: PromptSource, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._source = source
        self._unfinished: list[tuple[int, list[int]]] = []  # (place of its prompt, tokens so far), oldest first
        self._prefixes: list[list[int]] = []
        self._finished: list[bool] = []

    @property
    def max_new_tokens(self) -> int:
        return int(self.args.window)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        size = len(inputs)
        continued, self._unfinished = self._unfinished[:size], self._unfinished[size:]
        fresh = self._source.take(size - len(continued))
        places = [place for place, _ in continued] + [place for place, _ in fresh]
        self._prefixes = [tokens for _, tokens in continued] + [[] for _ in fresh]
        rows = [self._source.row(place) for place, _ in continued] + [row for _, row in fresh]
        batch = super()._generate_and_score_completions(rows)
        lengths = batch["completion_mask"].sum(1).tolist()
        self._unfinished += [
            (place, ids[:length].tolist())
            for place, ids, length, finished in zip(places, batch["completion_ids"], lengths, self._finished, strict=True)
            if not finished
        ]
        self._count({"window/unfinished_frac": 1 - sum(self._finished) / size, "window/continued_frac": len(continued) / size})
        return batch

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], Any]:
        """Whole rollouts so far: what was there, and a window more."""
        so_far = [prompt + prefix for prompt, prefix in zip(prompt_ids, self._prefixes, strict=True)]
        fields = select_fields(multimodal_fields, images, list(range(len(so_far))), [len(ids) for ids in so_far])
        windows, logprobs = super()._generate_single_turn(so_far, images, fields, *args, **kwargs)
        completions = [prefix + window for prefix, window in zip(self._prefixes, windows, strict=True)]
        ends = set(self.eos_token_ids)
        self._finished = [ids[-1] in ends or len(ids) >= self.max_completion_length for ids in completions]
        return completions, logprobs

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *args: Any) -> Tensor:
        flagged = [{**row, "unfinished": not done} for row, done in zip(inputs, self._finished, strict=True)]
        return super()._calculate_rewards(flagged, *args)

    def finish_batch(self, batch: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
        """The policy is trained on this step's windows only: what stands before them was trained on when it was sampled."""
        places_T = torch.arange(batch["completion_ids"].size(1), device=batch["completion_ids"].device)
        before_N1 = torch.tensor([[len(prefix)] for prefix in self._prefixes], device=places_T.device)
        batch["loss_mask"] = batch["loss_mask"] * (places_T >= before_N1)
        super().finish_batch(batch, inputs)

    def finished(self, batch: dict[str, Any]) -> Tensor:
        return torch.tensor(self._finished, device=batch["completion_mask"].device).long()

    def rollout_state(self) -> dict[str, Any]:
        unfinished = [(self._source.number(place), tokens) for place, tokens in self._unfinished]
        return {**super().rollout_state(), "unfinished": unfinished, "source": self._source.state_dict()}

    def load_rollout_states(self, states: Sequence[dict[str, Any]]) -> None:
        super().load_rollout_states(states)
        everyones = [(self._source.place(number), tokens) for state in states for number, tokens in state["unfinished"]]
        self._unfinished = [(place, tokens) for place, tokens in everyones if place is not None]
        self._source.load_state_dicts([state["source"] for state in states])
