"""Which prompts a rollout batch holds: TRL's order of them, kept where a run resumes, or a stream of a strategy's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback

from rewardlab.rewards.rollout import Row
from rewardlab.training.policy_gradient.rollouts.sampling import State


class PromptSource:
    """An endless stream of a dataset's rows: in passes of different orders, with different rows for each process; or, with
    ``weights`` ([P] positive numbers), sampled in proportion to them, no row twice before all came once."""

    def __init__(
        self,
        rows: Any,
        *,
        seed: int,
        process: int = 0,
        num_processes: int = 1,
        weights: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        self._rows, self._weights, self._num_processes = rows, weights, num_processes
        self._numbers = torch.arange(process, len(rows), num_processes)
        self._generator = torch.Generator().manual_seed(seed)
        self._left: list[int] = []
        self._num_taken = 0.0

    @property
    def passes(self) -> float:
        """How often the prompts of this process were drawn so far, on average."""
        return self._num_taken / max(1, len(self._numbers))

    def take(self, number: int) -> list[tuple[int, Row]]:
        """Return the next ``number`` of (place, row)."""
        if self._weights is None:
            while len(self._left) < number:
                self._left += torch.randperm(len(self._numbers), generator=self._generator).tolist()
            places, self._left = self._left[:number], self._left[number:]
        else:
            places = self._by_weight(number, self._weights())
        self._num_taken += number
        return [(place, self.row(place)) for place in places]

    def _by_weight(self, number: int, weights_P: torch.Tensor) -> list[int]:
        places: list[int] = []
        while len(places) < number:
            size = min(number - len(places), len(weights_P))
            places += torch.multinomial(weights_P, size, replacement=False, generator=self._generator).tolist()
        return places

    def row(self, place: int) -> Row:
        return dict(self._rows[self.number(place)])

    def number(self, place: int) -> int:
        """Return the row of the dataset at ``place``."""
        return int(self._numbers[place])

    def place(self, number: int) -> int | None:
        """Return the place of row ``number`` of the dataset in this process; None if another process has it."""
        place, other = divmod(number - int(self._numbers[0]), self._num_processes)
        return None if other else place

    def state_dict(self) -> State:
        """Return the state by numbers of rows, so that another number of processes can share it."""
        return {
            "generator": self._generator.get_state(),
            "left": [self.number(place) for place in self._left],
            "taken": self._num_taken,
        }

    def load_state_dicts(self, states: Sequence[State]) -> None:
        """Take this process's part of what the processes of the run so far, fewer, more or as many, have left."""
        self._generator.set_state(states[int(self._numbers[0]) % len(states)]["generator"])
        left = (self.place(number) for state in states for number in state["left"])
        self._left = [place for place in left if place is not None]
        taken = sum(state.get("taken", 0.0) for state in states)  # of all prompts, by all processes
        self._num_taken = taken * len(self._numbers) / len(self._rows)


class RolloutSampler(Sampler[int]):
    """Yield row numbers as TRL's RepeatSampler does: each ``group_size`` times in a row, each batch of ``batch`` rows
    ``repeats`` times, without an incomplete last batch. Unlike TRL's, it has an epoch, so that a resumed run continues in the
    right permutation. With ``orders_per_pair`` 2, rows 2i and 2i + 1, the two orders of one pair, stay neighbours. Raise
    ValueError if a batch would split a pair.
    """

    def __init__(
        self, num_rows: int, *, batch: int, group_size: int, repeats: int, seed: int, orders_per_pair: int = 1
    ) -> None:
        if batch % orders_per_pair or num_rows % orders_per_pair:
            raise ValueError(f"both orders of a pair are needed: {num_rows} rows in batches of {batch} must both be even")
        self._num_rows, self._batch, self._group_size, self._repeats = num_rows, batch, group_size, repeats
        self._seed, self._orders_per_pair, self._epoch = seed, orders_per_pair, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    @property
    def repeats(self) -> int:
        return self._repeats

    def __iter__(self) -> Iterator[int]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        rows = self._order(epoch)
        for start in range(0, len(rows) - self._batch + 1, self._batch):
            for _ in range(self._repeats):
                yield from self._in_groups(rows[start : start + self._batch])

    def batch(self, number: int) -> list[int]:
        """Return the row numbers of rollout batch ``number``, counted through all epochs."""
        epoch, place = divmod(number, self._num_rows // self._batch)
        return self._in_groups(self._order(epoch)[place * self._batch : (place + 1) * self._batch])

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(epoch + 1):
            units = torch.randperm(self._num_rows // self._orders_per_pair, generator=generator)
        return [self._orders_per_pair * unit + place for unit in units.tolist() for place in range(self._orders_per_pair)]

    def _in_groups(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows for _ in range(self._group_size)]

    def __len__(self) -> int:
        return self._num_rows // self._batch * self._batch * self._group_size * self._repeats


class SetSamplerEpoch(TrainerCallback):
    """Sets the sampler's epoch, which nothing else reaches through the wrappers of several processes and skipped batches.
    ``sampler`` returns it once the trainer has made it."""

    def __init__(self, sampler: Callable[[], RolloutSampler | None]) -> None:
        self._sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (sampler := self._sampler()) is not None:
            sampler.set_epoch(int(state.epoch))
