"""Dynamic sampling: training on mixed groups only. Groups all correct or all wrong give a group-relative method no gradient.

``refill`` samples until enough groups are mixed (DAPO, arXiv 2503.14476, eq. 11). ``oversample`` samples once, in excess by the
need of the last batches, which keeps the time of a step even; only the first batch is refilled (GLM-4.1V-Thinking, arXiv
2507.01006). Neither returns a group that is not mixed: if too few are, these are repeated, and counted.

Whether a group is mixed is read from the verdicts, not from the rewards: a reward shaped by length varies in every group. A
rollout without a reward is ignored. A prompt's pass rate begins at its difficulty tag and follows its rollouts.

Every process samples its part of the same prompts, and all choose together, so that a run is the same on any number of
processes. A process with too few of the chosen groups is sent groups of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rewardlab.errors import DataError
from rewardlab.metrics.running import Metric
from rewardlab.rewards.rollout import GatherObjects, Rollout, Row
from rewardlab.rl.selection import (
    TIERS,
    RatioEMA,
    balance_groups,
    difficulty_weights,
    pass_rates,
    prior_counts,
    tier_numbers,
    updated_counts,
)
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.rollouts.sampling import State


@dataclass(frozen=True)
class Candidates:
    """The trainer's functions: ``sample_and_score(rows)`` returns one scored rollout per row, ``gather`` joins lists of all
    ``num_processes``; ``process`` is this one's number."""

    sample_and_score: Callable[[list[Row]], list[Rollout]]
    gather: GatherObjects
    process: int = 0
    num_processes: int = 1


@dataclass(frozen=True)
class Group:
    """A sampled group: the process that has its rollouts, whether each scored one is correct, and, in that process, the
    rollouts."""

    process: int
    correct: list[float]
    rollouts: list[Rollout] | None

    @property
    def is_mixed(self) -> bool:
        return 0 < sum(self.correct) < len(self.correct)


class DynamicSampling:
    """Chooses the groups of one rollout batch from its own stream of prompts, the same in every process, and keeps their pass
    rates."""

    def __init__(self, source: PromptSource, pass_rates: PassRates, *, group_size: int, refill: bool, max_rounds: int) -> None:
        self._source, self._pass_rates = source, pass_rates
        self._group_size, self._refill, self._max_rounds = group_size, refill, max_rounds
        self._ratio = RatioEMA()

    def choose(self, candidates: Candidates, num_rollouts: int) -> tuple[list[Rollout], dict[str, Metric]]:
        """Return this process's ``num_rollouts`` rollouts in whole groups, and the fractions used, mixed and repeated.
        ``oversample`` takes another round only for its first batch, or if no group is mixed. Raise DataError if ``max_rounds``
        bring none.
        """
        num_groups = num_rollouts // self._group_size * candidates.num_processes
        drawn, metrics = self._draw_rounds(candidates, num_groups)
        mixed = [group for group in drawn if group.is_mixed]
        self._ratio = self._ratio.update(1 - len(mixed) / len(drawn))
        num_used = min(num_groups, len(mixed))
        metrics |= {
            "sampling/mixed_frac": Metric(len(mixed) / len(drawn), len(drawn)),
            "sampling/used_frac": Metric(num_used / len(drawn), len(drawn)),
            "sampling/discarded_groups": Metric(len(drawn) - num_used),
            "sampling/oversampling": Metric(self._ratio.factor),
            "sampling/short_frac": Metric((num_groups - num_used) / num_groups),
        }
        if not mixed:
            raise DataError(
                f"{len(drawn):,} groups of {self._group_size} rollouts were sampled, and each is all correct or all wrong, "
                "so there is nothing to learn. Use harder (or easier) pairs, a larger group_size, or a higher temperature"
            )
        if not self._refill:
            num_correct = [sum(group.correct) * self._group_size / len(group.correct) for group in mixed]
            mixed = [mixed[n] for n in balance_groups(num_correct, self._group_size, num_groups)]
        return _share_out((mixed * math.ceil(num_groups / len(mixed)))[:num_groups], candidates), metrics

    def _draw_rounds(self, candidates: Candidates, num_groups: int) -> tuple[list[Group], dict[str, Metric]]:
        """Return the groups of all rounds, and the tiers of the first round's prompts and of the whole set."""
        drawn: list[Group] = []
        metrics: dict[str, Metric] = {}
        until_full = self._refill or not self._ratio.weight
        for _ in range(self._max_rounds):
            prompts = self._source.take(math.ceil((1.0 if self._refill else self._ratio.factor) * num_groups))
            metrics = metrics or self._pass_rates.tier_metrics([place for place, _ in prompts])
            drawn += self._sample(candidates, prompts)
            if sum(group.is_mixed for group in drawn) >= (num_groups if until_full else 1):
                break
        return drawn, metrics

    def _sample(self, candidates: Candidates, prompts: list[tuple[int, Row]]) -> list[Group]:
        """Return the groups of the prompts, in their order, and count them in the pass rates.

        The parts of the processes must be equally long, for all make the same calls of the model: the last part is filled up
        with its last prompt, and what is sampled of that again is dropped.
        """
        size = math.ceil(len(prompts) / candidates.num_processes)
        start = size * candidates.process
        rows = [row for _, row in prompts[start : start + size]]
        rows += [prompts[-1][1]] * (size - len(rows))
        rollouts = candidates.sample_and_score([row for row in rows for _ in range(self._group_size)])
        groups = [rollouts[n : n + self._group_size] for n in range(0, len(rollouts), self._group_size)]
        outcomes = candidates.gather([_correct(group) for group in groups])[: len(prompts)]
        for (place, _), correct in zip(prompts, outcomes, strict=True):
            if correct:
                self._pass_rates.update(place, sum(correct), len(correct) - sum(correct))
        return [
            Group(n // size, correct, groups[n - start] if n // size == candidates.process else None)
            for n, correct in enumerate(outcomes)
        ]

    def state_dict(self) -> State:
        return {
            "ratio": (self._ratio.total, self._ratio.weight),
            "source": self._source.state_dict(),
            "pass_rates": self._pass_rates.state_dict(),
        }

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Load that of the first process of the run so far: all are the same."""
        self._ratio = RatioEMA(*states[0]["ratio"])
        self._source.load_state_dicts([states[0]["source"]])
        self._pass_rates.load_state_dict(states[0]["pass_rates"])


def _share_out(groups: list[Group], candidates: Candidates) -> list[Rollout]:
    """Return this process's part of the rollouts of ``groups``, an equal number of groups for each: first of its own."""
    room = [len(groups) // candidates.num_processes] * candidates.num_processes
    homes: list[int | None] = []
    for group in groups:
        stays = room[group.process] > 0
        room[group.process] -= stays
        homes.append(group.process if stays else None)
    moved = [n for n, home in enumerate(homes) if home is None]
    for n, home in zip(moved, (process for process, free in enumerate(room) for _ in range(free)), strict=True):
        homes[n] = home
    received: dict[int, list[Rollout]] = {}
    if moved:
        parts = candidates.gather([(n, rollouts) for n in moved if (rollouts := groups[n].rollouts) is not None])
        received = {n: rollouts for n, rollouts in parts if homes[n] == candidates.process}
    mine = [(n, group.rollouts) for n, group in enumerate(groups) if homes[n] == candidates.process]
    chosen = [(n, received[n] if rollouts is None else rollouts) for n, rollouts in mine]
    # A prompt may come twice, repeated or drawn again: each time it is a group of its own.
    return [replace(rollout, row={**rollout.row, "draw": n}) for n, rollouts in chosen for rollout in rollouts]


def _correct(group: list[Rollout]) -> list[float]:
    """Return whether each rollout that has a reward is correct."""
    return [rollout.correct for rollout in group if rollout.reward is not None]


class PassRates:
    """Running counts of right and wrong rollouts of ``P`` prompts, begun from their tags (``attempts``)."""

    def __init__(self, attempts: Sequence[str]) -> None:
        priors = {tag: prior_counts(tag) for tag in set(attempts)}
        self._counts_P2 = torch.tensor([priors[tag] for tag in attempts]).reshape(-1, 2)

    @property
    def rates(self) -> Tensor:
        """[P] the share of right rollouts, 0 to 1; of a prompt not drawn yet what its tag says."""
        return pass_rates(self._counts_P2)

    def weights(self) -> Tensor:
        """Return [P] how often to draw each prompt (RLCS, arXiv 2507.01006)."""
        return difficulty_weights(self.rates)

    def update(self, place: int, num_correct: float, num_wrong: float) -> None:
        """Count the rollouts of one drawing of the prompt at ``place``."""
        self._counts_P2[place] = updated_counts(self._counts_P2[place], num_correct, num_wrong)

    def tier_metrics(self, drawn: Sequence[int]) -> dict[str, Metric]:
        """Return the share of each tier among all prompts, and among those at the places ``drawn``."""
        tiers_P = tier_numbers(self.rates)
        metrics = {}
        for n, tier in enumerate(TIERS):
            metrics[f"tier/{tier}"] = Metric(float((tiers_P == n).float().mean()))
            metrics[f"tier/{tier}_drawn"] = Metric(float((tiers_P[list(drawn)] == n).float().mean()), len(drawn))
        return metrics

    def state_dict(self) -> State:
        return {"counts": self._counts_P2.clone()}

    def load_state_dict(self, state: State) -> None:
        self._counts_P2 = state["counts"].clone()
