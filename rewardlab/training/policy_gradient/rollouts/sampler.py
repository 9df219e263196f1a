"""Which prompts a rollout batch holds: TRL's order of them, kept where a run resumes, with both orders of a pair together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback


class RolloutSampler(Sampler[int]):
    """Row numbers as TRL's RepeatSampler gives them: each ``group`` times in a row, each batch of ``batch`` rows ``repeats``
    times; an incomplete last batch is left out.

    Unlike TRL's, it is told the epoch, so that a run resumed in its third one goes on in the third permutation and not in the
    first. With ``together`` 2, rows 2i and 2i + 1, the two orders of one pair, stay neighbours and pairs are shuffled. Raises
    ValueError where a batch would split a pair.
    """

    def __init__(self, num_rows: int, *, batch: int, group: int, repeats: int, seed: int, together: int = 1) -> None:
        if batch % together or num_rows % together:
            raise ValueError(f"both orders of a pair are needed: {num_rows} rows in batches of {batch} must both be even")
        self._num_rows, self._batch, self._group, self._repeats = num_rows, batch, group, repeats
        self._seed, self._together, self._epoch = seed, together, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        units = [torch.randperm(self._num_rows // self._together, generator=generator) for _ in range(self._epoch + 1)][-1]
        self._epoch += 1
        rows = [self._together * unit + place for unit in units.tolist() for place in range(self._together)]
        for start in range(0, len(rows) - self._batch + 1, self._batch):
            for _ in range(self._repeats):
                for row in rows[start : start + self._batch]:
                    yield from [row] * self._group

    def __len__(self) -> int:
        return self._num_rows // self._batch * self._batch * self._group * self._repeats


class InItsEpoch(TrainerCallback):
    """Tells the sampler the epoch as one begins: wrapped for several processes and skipped batches, no one else reaches it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer.rollout_sampler is not None:
            self._trainer.rollout_sampler.set_epoch(int(state.epoch))
