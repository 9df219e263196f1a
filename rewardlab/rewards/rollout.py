"""Rollouts as a reward function reads them, and what it returns.

Adding a reward: a callable that takes rollouts and the training step and returns :class:`Scored`, given to the trainer as its
``reward``. ``rewards/scorer.py`` is that of judges, ``rewards/policy_function.py`` that of policies under a judge.
It is given the rollouts of its own process; one that compares rollouts gathers what it compares (:data:`GatherObjects`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rewardlab.errors import InputError
from rewardlab.metrics.running import Metrics

Row = dict[str, Any]  # a row of the training set, as datasets gives it


@dataclass(frozen=True)
class Trajectory:
    """The policy's samples for one prompt. Tokens before ``trained_from`` were trained on in an earlier step; those from
    ``trained_until`` on never are, nor are those of ``forced``, stretches from a position to before another, which the policy
    did not choose; ``image_fields`` are the model inputs of the images that these show.
    ``finished`` is False if a later step continues it. ``logprobs`` are the sampler's.
    """

    tokens: list[int]
    logprobs: list[float] | None = None
    trained_from: int = 0
    trained_until: int | None = None
    forced: tuple[tuple[int, int], ...] = ()
    finished: bool = True
    image_fields: dict[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> list[list[int]]:
        """Return the tokens that the policy chose: before the first stretch of ``forced``, after each, to the next."""
        begins = [0, *(end for _, end in self.forced)]
        ends = [*(begin for begin, _ in self.forced), len(self.tokens)]
        return [self.tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]

    @property
    def part_of_token(self) -> list[int]:
        """Return the number of each token's part, from 1 on; 0 for a token of ``forced``."""
        parts = [number for number, part in enumerate(self.parts, 1) for _ in part]
        for begin, end in self.forced:
            parts[begin:begin] = [0] * (end - begin)
        return parts


@dataclass(frozen=True)
class Rollout:
    """One trajectory from the prompt in ``row``, before padding, and its reward. ``text`` is what the reward function reads.
    ``reward`` is None if it could not be scored or is not finished; ``correct`` is 1 for a correct one, ``parsed`` whether its
    verdict could be read. ``turn_rewards`` [K] replace ``reward`` if each turn earns its own; ``turns`` are then their texts.
    """

    row: Row
    prompt_ids: list[int]
    trajectory: Trajectory
    text: str
    images: Any = None
    reward: float | None = None
    correct: float = 0.0
    parsed: bool = False
    turn_rewards: tuple[float, ...] = ()
    turns: tuple[str, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        return self.trajectory.tokens


@dataclass(frozen=True)
class Scored:
    """The result of a reward function for ``N`` rollouts: rewards (None: not scored), 1 or 0 for correct, whether the verdict
    could be read, and metrics."""

    rewards: list[float | None]
    correct: list[float]
    parsed: list[bool]
    metrics: Metrics = field(default_factory=dict)

    def attach(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts with their rewards; one that is not finite is none. Raise InputError if a list has another length
        than the rollouts."""
        for name, values in (("rewards", self.rewards), ("correct", self.correct), ("parsed", self.parsed)):
            if len(values) != len(rollouts):
                raise InputError(
                    f"the reward function returned {len(values)} {name} for {len(rollouts)} rollouts; return one for each, "
                    "and None as the reward of a rollout that it cannot score"
                )
        rewards = [None if reward is None or not math.isfinite(reward) else reward for reward in self.rewards]
        columns = zip(rollouts, rewards, self.correct, self.parsed, strict=True)
        return [replace(r, reward=reward, correct=correct, parsed=parsed) for r, reward, correct, parsed in columns]


GatherObjects = Callable[[list[Any]], list[Any]]
"""Return the lists of all processes of a run as one, in the order of the processes; ``list`` where there is one process. Every
process must call it equally often."""

RewardFunction = Callable[[Sequence[Rollout], int], Scored]
"""(rollouts, training step) -> Scored. Its ``__name__`` names the columns in TRL's log. The rollouts may be none: of a window
where nothing is finished, or where no judgment was revised."""
