"""A critic without an error of its own, for ablations: the mean reward of many completions of every prefix of a rollout.

A method that fails with it fails by itself; one that works with it alone fails by its critic. It is given to a trainer as
``values=``, in the place of its critic. What it costs is counted in ``num_tokens``: about (rollouts x tokens a rollout) x
completions x half the tokens a rollout, for a judgment of 30 tokens 240 times the rollouts' own at 16 completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rewardlab.models.families import IMAGE_FIELDS, TOKEN_FIELDS, Fields, images_by_prompt, select_fields
from rewardlab.rewards.rollout import RewardFunction, Rollout, Trajectory
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import draw_uniforms
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.policy_gradient.rollouts.sampling import Prompts, decode_rollouts

Prefix = tuple[int, int]  # row of a rollout, and how many of its tokens


class OracleValues:
    """Values [N, T] of the states before each token of whole rollouts, by ``completions`` of each with ``policy`` as it is.

    ``policy`` may be the model that is trained, whose values then follow it, or a copy that stays. Every ``stride``-th state is
    completed; those between have the value of the one before. A state that several rollouts share is completed for each.
    Completions end where a judgment does, or at ``max_tokens`` with what stands before them; ``batch_size`` of them are drawn
    side by side. ``reward`` is called with rollouts that it must pay one by one.
    """

    def __init__(
        self,
        policy: Any,
        processor: Any,
        reward: RewardFunction,
        *,
        completions: int,
        max_tokens: int,
        ends: frozenset[int],
        stride: int = 1,
        batch_size: int = 1024,
        seed: int = 0,
    ) -> None:
        self._policy, self._tokenizer, self._reward = policy, processor.tokenizer, reward
        self._completions, self._max_tokens, self._ends = completions, max_tokens, ends
        self._stride, self._batch_size, self._seed = stride, batch_size, seed
        self._calls = 0
        self.num_tokens = 0  # generated so far

    def __call__(self, batch: RolloutBatch, rollouts: Sequence[Rollout]) -> Tensor:
        values_NT = torch.zeros_like(batch.completion_mask_NT, dtype=torch.float32)
        prefixes = [(n, t) for n, r in enumerate(rollouts) for t in range(0, len(r.token_ids), self._stride)]
        fields = prompt_fields(batch)
        at_once = max(1, self._batch_size // self._completions)
        for start in range(0, len(prefixes), at_once):
            some = prefixes[start : start + at_once]
            for (n, t), value in zip(some, self._values(some, rollouts, fields), strict=True):
                values_NT[n, t : t + self._stride] = value
        return values_NT * batch.completion_mask_NT

    def _values(self, prefixes: Sequence[Prefix], rollouts: Sequence[Rollout], fields: Fields) -> list[float]:
        """Return the mean reward of the completions of each prefix."""
        repeated = [prefix for prefix in prefixes for _ in range(self._completions)]
        completed = self._complete(repeated, rollouts, fields)
        scored = self._reward(completed, -1)
        rewards = torch.tensor([0.0 if reward is None else reward for reward in scored.rewards])
        means: list[float] = rewards.view(len(prefixes), self._completions).mean(1).tolist()
        return means

    def _complete(self, prefixes: Sequence[Prefix], rollouts: Sequence[Rollout], fields: Fields) -> list[Rollout]:
        """Return the rollouts that one completion of each prefix makes."""
        rows = [n for n, _ in prefixes]
        ids = [rollouts[n].prompt_ids + rollouts[n].token_ids[:t] for n, t in prefixes]
        images = images_by_prompt([rollout.images for rollout in rollouts])
        grown = select_fields(fields, images, rows, list(map(len, ids)))
        shown = None if images is None else [images[row] for row in rows]
        room = self._max_tokens - min(t for _, t in prefixes)
        drawn, _ = decode_rollouts(
            self._policy,
            Prompts(ids, shown, grown, self._tokenizer.pad_token_id),
            draw_uniforms((self._seed, self._calls), range(len(ids)), room),
            SamplingParams(1, 1.0, 1.0, room),
            ends=self._ends,
            batch_size=len(ids),
        )
        self._calls += 1
        self.num_tokens += sum(map(len, drawn))
        return [self._rollout(rollouts[n], t, tokens) for (n, t), tokens in zip(prefixes, drawn, strict=True)]

    def _rollout(self, rollout: Rollout, length: int, completion: list[int]) -> Rollout:
        tokens = (rollout.token_ids[:length] + completion)[: self._max_tokens]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return replace(rollout, trajectory=Trajectory(tokens), text=text)


def prompt_fields(batch: RolloutBatch) -> Fields:
    """Return the model inputs of a batch's prompts beside their tokens: images, and types of tokens without padding."""
    fields = {name: batch.image_fields[name] for name in IMAGE_FIELDS if name in batch.image_fields}
    width, masks = batch.prompt_ids_NP.size(1), batch.prompt_mask_NP.bool()
    for name in TOKEN_FIELDS:
        if name in batch.image_fields:
            types = batch.image_fields[name][:, :width]
            fields[name] = [row[mask].tolist() for row, mask in zip(types, masks, strict=True)]
    return fields
