"""Prompts for methods that decide themselves how many to draw: an endless stream that a checkpoint can resume."""

from __future__ import annotations

from typing import Any

import torch

from rewardlab.rl.selection import difficulty_weights

PASS_RATE_DECAY = 0.5  # a prompt is met again only after a whole pass, by another policy: half of the rate is news


class PromptSource:
    """Rows of a dataset, each pass in another order; of several processes, each has rows of its own.

    ``weighted`` draws prompts of middling difficulty more often (RLCS, arXiv 2507.01006), by the pass rates that
    :meth:`learn` is told; a prompt not met yet counts as middling.
    """

    def __init__(self, rows: Any, *, seed: int, process: int = 0, num_processes: int = 1, weighted: bool = False) -> None:
        self._rows, self._weighted = rows, weighted
        self._own = torch.arange(process, len(rows), num_processes)
        self._generator = torch.Generator().manual_seed(seed)
        self._pass_rates = torch.full((len(self._own),), 0.5)
        self._left: list[int] = []

    def take(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """The next ``number`` of (place, row); places are for :meth:`learn`."""
        while len(self._left) < number:
            self._left += self._pass()
        places, self._left = self._left[:number], self._left[number:]
        return [(place, self.row(place)) for place in places]

    def row(self, place: int) -> dict[str, Any]:
        return dict(self._rows[int(self._own[place])])

    def _pass(self) -> list[int]:
        size = len(self._own)
        if not self._weighted:
            return torch.randperm(size, generator=self._generator).tolist()
        weights = difficulty_weights(self._pass_rates)
        return torch.multinomial(weights, size, replacement=True, generator=self._generator).tolist()

    def learn(self, place: int, pass_rate: float) -> None:
        """What share of its rollouts was right, 0..1, when the prompt at ``place`` was last drawn."""
        self._pass_rates[place] += (1 - PASS_RATE_DECAY) * (pass_rate - self._pass_rates[place])

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "pass_rates": self._pass_rates, "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])
        self._pass_rates, self._left = state["pass_rates"].clone(), list(state["left"])
