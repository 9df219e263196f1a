"""Prompts for methods that decide themselves how many to draw: an endless stream that a checkpoint can resume."""

from __future__ import annotations

from collections.abc import Sequence
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
        self._rows, self._weighted, self._num_processes = rows, weighted, num_processes
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
        return dict(self._rows[self.number(place)])

    def _pass(self) -> list[int]:
        size = len(self._own)
        if not self._weighted:
            return torch.randperm(size, generator=self._generator).tolist()
        weights = difficulty_weights(self._pass_rates)
        return torch.multinomial(weights, size, replacement=True, generator=self._generator).tolist()

    def learn(self, place: int, pass_rate: float) -> None:
        """What share of its rollouts was right, 0..1, when the prompt at ``place`` was last drawn."""
        self._pass_rates[place] += (1 - PASS_RATE_DECAY) * (pass_rate - self._pass_rates[place])

    def number(self, place: int) -> int:
        """Which row of the dataset stands at ``place``."""
        return int(self._own[place])

    def place(self, number: int) -> int | None:
        """Where row ``number`` of the dataset stands here; None where it is another process's."""
        place, other = divmod(number - int(self._own[0]), self._num_processes)
        return None if other else place

    def state_dict(self) -> dict[str, Any]:
        """By the numbers of rows, so that it can be dealt out anew."""
        return {
            "generator": self._generator.get_state(),
            "pass_rates": dict(zip(self._own.tolist(), self._pass_rates.tolist(), strict=True)),
            "left": [self.number(place) for place in self._left],
        }

    def load_state_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        """Take this process's part of what the processes of the run so far, fewer, more or as many, have left."""
        self._generator.set_state(states[int(self._own[0]) % len(states)]["generator"])
        rates = {number: rate for state in states for number, rate in state["pass_rates"].items()}
        self._pass_rates = torch.tensor([rates[number] for number in self._own.tolist()])
        left = (self.place(number) for state in states for number in state["left"])
        self._left = [place for place in left if place is not None]
