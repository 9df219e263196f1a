"""Rollouts that are sampled from beginning to end in one step, and what every way of making rollouts offers the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rewardlab.metrics.running import Metric, Metrics
from rewardlab.models.families import Fields
from rewardlab.rewards.rollout import Rollout, Row, Scored, Trajectory
from rewardlab.training.policy_gradient.rollouts.state import State

Samples = tuple[list[list[int]], list[list[float]] | None]
Score = Callable[[Sequence[Rollout]], Scored]


@dataclass(frozen=True)
class Sampling:
    """What the trainer lends a strategy. ``sample(prompt_ids, images, fields, rows)`` returns tokens and log-probs, one
    completion a prompt, of at most the strategy's ``max_new_tokens``; ``rows`` tells which of the process's rollouts each
    continues, and so which draws are its own. ``all_processes(flag)`` tells whether a flag holds everywhere; ``ends`` are the
    tokens that end a turn; ``max_completion_length`` bounds a turn."""

    sample: Callable[[list[list[int]], Any, Fields, Sequence[int]], Samples]
    all_processes: Callable[[bool], bool]
    ends: frozenset[int]
    max_completion_length: int


@dataclass(frozen=True)
class Collected:
    """The scored rollouts of one process, and metrics."""

    rollouts: list[Rollout]
    metrics: dict[str, Metric]


class RolloutStrategy(Protocol):
    """How prompts become scored rollouts. One instance serves one process of one run.

    ``max_new_tokens``: of one call of the sampler; None: the whole completion. ``continues_rollouts``: some rollouts of a batch
    may be unfinished and without a reward.
    """

    max_new_tokens: int | None
    continues_rollouts: bool

    def choose_rows(self, rows: list[Row]) -> list[Row]:
        """Return the rows to make rollouts of, as many as ``rows``, which TRL's data loader gave."""
        ...

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        """Return one completion a prompt. ``images`` are those of each prompt, ``fields`` the model inputs made of them."""
        ...

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        """Return the rollouts with their rewards."""
        ...

    def state_dict(self) -> State:
        """Return what a resumed run needs to go on with the same rollouts; {} where that is nothing."""
        ...

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Go on where all processes of the run so far, of which there may have been more or fewer, have stopped."""
        ...


def as_metrics(metrics: Metrics, weight: float = 1.0) -> dict[str, Metric]:
    """Return plain numbers as means over ``weight`` things, metrics as they are."""
    return {name: value if isinstance(value, Metric) else Metric(float(value), weight) for name, value in metrics.items()}


class WholeRollouts:
    """Each prompt is completed and scored once."""

    max_new_tokens: int | None = None
    continues_rollouts = False

    def choose_rows(self, rows: list[Row]) -> list[Row]:
        return rows

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        tokens, logprobs = sampling.sample(prompt_ids, images, fields, range(len(prompt_ids)))
        return [Trajectory(ids, None if logprobs is None else logprobs[n]) for n, ids in enumerate(tokens)]

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        scored = score(rollouts)
        return Collected(scored.attach(rollouts), as_metrics(scored.metrics))

    def state_dict(self) -> State:
        return {}

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Nothing is kept between steps."""
