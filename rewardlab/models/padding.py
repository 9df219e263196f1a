"""Forward passes with little padding: rows trimmed to their width, and passes of rows of similar width.

Rows keep their tokens in order; only masked positions are removed. A model's outputs for a token are equal up to rounding.

Shapes: ``N`` rows, ``L`` columns of the padded rows, ``W`` of the widest row without its padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def _as_they_are(number: int) -> int:
    return number


@dataclass(frozen=True)
class PassLimits:
    """The most ``rows`` and ``positions`` (rows times the widest of them) of a forward pass; None: no limit.

    ``max_processes`` returns the maximum over processes: under a limit of positions all make as many passes as the one with
    most, as ZeRO-3 requires.
    """

    rows: int | None = None
    positions: int | None = None
    max_processes: Callable[[int], int] = _as_they_are

    def cut(self, widths: Sequence[int]) -> list[list[int]]:
        """Return the rows of each pass, the widest first, in stable order. A row wider than ``positions`` has a pass of its
        own."""
        order = sorted(range(len(widths)), key=lambda row: -widths[row])
        passes: list[list[int]] = []
        for row in order:
            if passes and self._has_room(passes[-1], widths):
                passes[-1].append(row)
            else:
                passes.append([row])
        if self.positions is not None:
            _split_to(passes, self.max_processes(len(passes)), widths)
        return passes

    def _has_room(self, rows: Sequence[int], widths: Sequence[int]) -> bool:
        number = len(rows) + 1
        if self.rows is not None and number > self.rows:
            return False
        return self.positions is None or number * widths[rows[0]] <= self.positions


def _split_to(passes: list[list[int]], number: int, widths: Sequence[int]) -> None:
    """Halve the largest passes, in place, until there are ``number``. Raise ValueError for fewer rows."""
    while len(passes) < number:
        largest = max(range(len(passes)), key=lambda n: (len(passes[n]) > 1, len(passes[n]) * widths[passes[n][0]]))
        rows = passes[largest]
        if len(rows) < 2:
            raise ValueError(f"{len(passes)} rows cannot be split into {number} passes, the number of another process")
        half = (len(rows) + 1) // 2
        passes[largest : largest + 1] = [rows[:half], rows[half:]]


def trim(tensors: Mapping[str, Tensor], mask_NL: Tensor) -> dict[str, Tensor]:
    """Return [N, W] of each [N, L]: the unmasked positions in order, then some masked ones."""
    width = int(mask_NL.sum(1).max())
    order_NW = torch.argsort((mask_NL == 0).long(), dim=1, stable=True)[:, :width]
    return {name: tensor.gather(1, order_NW) for name, tensor in tensors.items()}


def untrim(values_NW: Tensor, mask_NL: Tensor, columns: slice) -> Tensor:
    """Return the values [N, columns] of some columns of the padded rows, given those of the trimmed rows. Masked positions get
    the value of a neighbouring token."""
    places_NL = (mask_NL.long().cumsum(1) - 1).clamp(min=0)
    return values_NW.gather(1, places_NL[:, columns])
