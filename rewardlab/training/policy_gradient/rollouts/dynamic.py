"""Dynamic sampling: training on mixed groups only. Those all correct or all wrong give a group-relative method no gradient.

``refill`` draws until enough groups are mixed (DAPO, arXiv 2503.14476, eq. 11). ``oversample`` draws once, as many more as the
last rounds say will be needed, and so keeps the time of a step even (GLM-4.1V-Thinking, arXiv 2507.01006). Neither ever
returns a group that is not mixed: where too few are, those there are are repeated, and counted.

Whether a group is mixed is read from the verdicts, not from the rewards: a reward shaped by length varies in every group. A
rollout without a reward decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rewardlab.errors import DataError
from rewardlab.metrics.running import Metric
from rewardlab.rewards.rollout import Rollout, Row
from rewardlab.rl.selection import balance_groups, oversampling
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.rollouts.state import State


@dataclass(frozen=True)
class Candidates:
    """What the trainer lends: ``sample_and_score(rows)`` returns one scored rollout a row, ``all_processes(flag)`` whether a
    flag holds in every process, ``mean_processes(value)`` the mean of a value over them."""

    sample_and_score: Callable[[list[Row]], list[Rollout]]
    all_processes: Callable[[bool], bool]
    mean_processes: Callable[[float], float]


class DynamicSampling:
    """Chooses the groups of one rollout batch from its own stream of prompts."""

    def __init__(self, source: PromptSource, *, group_size: int, refill: bool, max_rounds: int) -> None:
        self._source, self._group_size, self._refill, self._max_rounds = source, group_size, refill, max_rounds
        self._factor = 1.0

    def choose(self, candidates: Candidates, num_rollouts: int) -> tuple[list[Rollout], dict[str, Metric]]:
        """Return ``num_rollouts`` rollouts in whole groups, and what share was used, mixed and repeated.

        ``oversample`` takes another round only where the first brought not one mixed group. Raise DataError where
        ``max_rounds`` bring none.
        """
        num_groups, num_drawn = num_rollouts // self._group_size, 0
        mixed: list[list[Rollout]] = []
        uniform: list[list[Rollout]] = []
        enough = num_groups if self._refill else 1
        for _ in range(self._max_rounds):
            groups = self._draw(candidates, num_groups if self._refill else math.ceil(self._factor * num_groups))
            num_drawn += len(groups)
            for group in groups:
                correct = _correct(group)
                (mixed if 0 < sum(correct) < len(correct) else uniform).append(group)
            if candidates.all_processes(len(mixed) >= enough):
                break
        self._factor = oversampling(self._factor, candidates.mean_processes(len(uniform) / num_drawn))
        metrics = {
            "sampling/mixed_frac": Metric(len(mixed) / num_drawn, num_drawn),
            "sampling/used_frac": Metric(min(1.0, min(num_groups, len(mixed)) / num_drawn), num_drawn),
            "sampling/oversampling": Metric(self._factor),
            "sampling/short_frac": Metric(max(0, num_groups - len(mixed)) / num_groups),
        }
        if not candidates.all_processes(bool(mixed)):
            raise DataError(
                f"{num_drawn:,} groups of {self._group_size} rollouts were drawn by each process, and every one of one "
                f"process's "
                "is all correct or all wrong: nothing to learn from. Take harder (or easier) pairs, a larger group_size, or a "
                "higher temperature"
            )
        if not self._refill:
            num_correct = [sum(_correct(group)) * self._group_size / len(_correct(group)) for group in mixed]
            mixed = [mixed[n] for n in balance_groups(num_correct, self._group_size, num_groups)]
        repeated = (mixed * math.ceil(num_groups / len(mixed)))[:num_groups]
        # A prompt may come twice, repeated or drawn again: each time it is a group of its own.
        rollouts = [replace(r, row={**r.row, "draw": n}) for n, group in enumerate(repeated) for r in group]
        return rollouts, metrics

    def _draw(self, candidates: Candidates, num_groups: int) -> list[list[Rollout]]:
        prompts = self._source.take(num_groups)
        rollouts = candidates.sample_and_score([row for _, row in prompts for _ in range(self._group_size)])
        groups = [rollouts[start : start + self._group_size] for start in range(0, len(rollouts), self._group_size)]
        for (place, _), group in zip(prompts, groups, strict=True):
            if correct := _correct(group):
                self._source.update_pass_rate(place, sum(correct) / len(correct))
        return groups

    def state_dict(self) -> State:
        return {"factor": self._factor, "source": self._source.state_dict()}

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Load those of all processes of the run so far."""
        self._factor = states[0]["factor"]
        self._source.load_state_dicts([state["source"] for state in states])


def _correct(group: list[Rollout]) -> list[float]:
    """Return whether each rollout that has a reward is correct."""
    return [rollout.correct for rollout in group if rollout.reward is not None]
