"""Reward functions that read nothing but a rollout's tokens, for trainers whose reward must be known; the terms of a config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rewardlab.config import RLConfig
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.rewards.judgment import RewardTerm, terms_of
from rewardlab.rewards.rollout import Rollout, Scored


def values_of(metrics: Metrics) -> dict[str, float]:
    """Return metrics without their weights."""
    return {name: metric.value if isinstance(metric, Metric) else metric for name, metric in metrics.items()}


def reward_terms(**keys: Any) -> tuple[RewardTerm, ...]:
    """Return the terms of a config with these keys."""
    return terms_of(RLConfig.model_validate(keys))


class TokenReward:
    """Pays ``reward(token ids, place in the batch)``; None is no reward. ``calls`` keeps the token ids of every call."""

    __name__ = "token_reward"

    def __init__(
        self,
        reward: Callable[[list[int], int], float | None],
        correct: Callable[[list[int], int], float] = lambda ids, n: 1.0,
        parsed: Callable[[int], bool] = lambda n: True,
    ) -> None:
        self._reward, self._correct, self._parsed = reward, correct, parsed
        self.calls: list[list[list[int]]] = []

    def __call__(self, rollouts: Sequence[Rollout], step: int) -> Scored:
        ids = [rollout.token_ids for rollout in rollouts]
        self.calls.append(ids)
        return Scored(
            rewards=[self._reward(tokens, n) for n, tokens in enumerate(ids)],
            correct=[float(self._correct(tokens, n)) for n, tokens in enumerate(ids)],
            parsed=[self._parsed(n) for n in range(len(ids))],
        )
