"""A sampler for rewards that compare the two orders of a pair: both are in one rollout batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class OrdersTogether(Sampler[int]):
    """Row numbers of a data set whose rows 2i and 2i + 1 are the two orders of one pair, as TRL's RepeatSampler gives them.

    Pairs are shuffled anew each time it is read, by a generator of its own; a pair's two orders stay neighbours. Each row
    comes ``group`` times in a row, each batch of ``batch`` rows ``repeats`` times; an incomplete last batch is left out.
    Raises ValueError where a batch would split a pair.
    """

    def __init__(self, num_rows: int, *, batch: int, group: int, repeats: int, seed: int) -> None:
        if batch % 2 or num_rows % 2:
            raise ValueError(f"both orders of a pair are needed: {num_rows} rows in batches of {batch} must both be even")
        self._num_rows, self._batch, self._group, self._repeats = num_rows, batch, group, repeats
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        pairs = torch.randperm(self._num_rows // 2, generator=self._generator).tolist()
        rows = [2 * pair + order for pair in pairs for order in (0, 1)]
        for start in range(0, len(rows) - self._batch + 1, self._batch):
            for _ in range(self._repeats):
                for row in rows[start : start + self._batch]:
                    yield from [row] * self._group

    def __len__(self) -> int:
        return self._num_rows // self._batch * self._batch * self._group * self._repeats
