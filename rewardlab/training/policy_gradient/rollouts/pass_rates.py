"""How hard each prompt of a run is: its difficulty tag, and then how its rollouts came out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rewardlab.metrics.running import Metric
from rewardlab.rl.selection import (
    TIERS,
    difficulty_weights,
    pass_rates,
    prior_counts,
    tier_numbers,
    updated_counts,
)
from rewardlab.training.policy_gradient.rollouts.state import State


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
