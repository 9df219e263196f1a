"""Training on undecided groups only: those all right or all wrong give a group-relative method no gradient.

``refill`` draws until enough are undecided (DAPO, arXiv 2503.14476, eq. 11). ``oversample`` draws once, as many more as the
last rounds say will be needed, and so keeps the time of a step even (GLM-4.1V-Thinking, arXiv 2507.01006). Neither ever
returns a decided group: where too few are undecided, those found are repeated, and counted.

Whether a group is decided is asked of the verdicts, not of the rewards: a reward shaped by length varies in every group. A
rollout without a reward decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rewardlab.errors import DataError
from rewardlab.metrics.running import Mean
from rewardlab.rl.selection import balance_groups, oversampling
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource


@dataclass(frozen=True)
class Sampled:
    """One rollout before padding, scored: ``rewards`` holds one number per reward function."""

    row: dict[str, Any]
    prompt_ids: list[int]
    completion_ids: list[int]
    completion: Any
    images: Any
    rewards: torch.Tensor
    right: float
    read: bool
    drawn_logprobs: list[float] | None


class DynamicSampling:
    """Chooses the groups of one rollout batch; ``trainer`` draws and scores the candidates."""

    def __init__(self, source: PromptSource, *, group: int, refill: bool, max_rounds: int) -> None:
        self._source, self._group, self._refill, self._max_rounds = source, group, refill, max_rounds
        self._factor = 1.0

    def choose(self, trainer: Any, num_rollouts: int) -> tuple[list[Sampled], dict[str, float]]:
        """``num_rollouts`` rollouts in whole groups, and what share was used, undecided and repeated.

        ``oversample`` takes another round only where the first brought not one undecided group. Raises DataError where
        ``max_rounds`` bring none.
        """
        wanted, drawn = num_rollouts // self._group, 0
        undecided: list[list[Sampled]] = []
        decided: list[list[Sampled]] = []
        enough = wanted if self._refill else 1
        for _ in range(self._max_rounds):
            groups = self._draw(trainer, wanted if self._refill else math.ceil(self._factor * wanted))
            drawn += len(groups)
            for group in groups:
                paid = _paid(group)
                (undecided if 0 < sum(paid) < len(paid) else decided).append(group)
            if trainer.everywhere(len(undecided) >= enough):
                break
        self._factor = oversampling(self._factor, trainer.mean_everywhere(len(decided) / drawn))
        metrics = {
            "sampling/undecided_frac": Mean(len(undecided) / drawn, drawn),
            "sampling/used_frac": Mean(min(1.0, min(wanted, len(undecided)) / drawn), drawn),
            "sampling/oversampling": self._factor,
            "sampling/short_frac": max(0, wanted - len(undecided)) / wanted,
        }
        if not trainer.everywhere(bool(undecided)):
            raise DataError(
                f"{drawn:,} groups of {self._group} rollouts were drawn by each process, and every one of one process's is all "
                "right or all wrong: nothing to learn from. Take harder (or easier) pairs, more group_size, or a "
                "higher temperature"
            )
        if not self._refill:
            num_right = [sum(_paid(group)) * self._group / len(_paid(group)) for group in undecided]
            undecided = [undecided[n] for n in balance_groups(num_right, self._group, wanted)]
        chosen = (undecided * math.ceil(wanted / len(undecided)))[:wanted]
        # A prompt may come twice, repeated or drawn again: each time it is a group of its own.
        return [replace(one, row={**one.row, "draw": n}) for n, group in enumerate(chosen) for one in group], metrics

    def _draw(self, trainer: Any, num_groups: int) -> list[list[Sampled]]:
        prompts = self._source.take(num_groups)
        candidates = trainer.sample_and_score([row for _, row in prompts for _ in range(self._group)])
        groups = [candidates[start : start + self._group] for start in range(0, len(candidates), self._group)]
        for (place, _), group in zip(prompts, groups, strict=True):
            if paid := _paid(group):
                self._source.learn(place, sum(paid) / len(paid))
        return groups

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self._factor, "source": self._source.state_dict()}

    def load_state_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        """Those of all processes of the run so far."""
        self._factor = states[0]["factor"]
        self._source.load_state_dicts([state["source"] for state in states])


def _paid(group: list[Sampled]) -> list[float]:
    """Whether each rollout that has a reward is right."""
    return [one.right for one in group if not one.rewards.isnan().any()]
