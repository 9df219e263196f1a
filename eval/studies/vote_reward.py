"""A reward that pays what the vote is worth: each rollout of a group earns more where the group's majority is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.metrics.running import Metric
from rewardlab.rewards.rollout import RewardFunction, Rollout, Scored


class VoteReward:
    """Adds ``weight`` to the reward of each rollout whose group, those of one pair in one order, has a right majority.

    As in :func:`rewardlab.verdicts.votes.majority_of_valid`, rollouts without a verdict have no vote, and a tie is not right.
    The expected gradient is that of the majority's accuracy, since all whose votes decide it are paid alike: the baseline must
    be one of the whole batch, for within a group the bonus is the same and would cancel. One process alone.
    """

    __name__ = "vote_reward"

    def __init__(self, inner: RewardFunction, weight: float) -> None:
        self._inner, self._weight = inner, weight

    def __call__(self, rollouts: Sequence[Rollout], step: int) -> Scored:
        """Return the inner reward with the bonus; one that cannot be scored stays so."""
        scored = self._inner(rollouts, step)
        keys = [(rollout.row["pair_id"], rollout.row["order"]) for rollout in rollouts]
        leads = dict.fromkeys(keys, 0)
        for key, correct, parsed in zip(keys, scored.correct, scored.parsed, strict=True):
            leads[key] += (1 if correct else -1) if parsed else 0
        bonus = [self._weight * (leads[key] > 0) for key in keys]
        rewards = [None if paid is None else paid + more for paid, more in zip(scored.rewards, bonus, strict=True)]
        right = sum(lead > 0 for lead in leads.values()) / max(1, len(leads))
        return replace(scored, rewards=rewards, metrics={**scored.metrics, "reward/majority_right": Metric(right, len(leads))})
