"""Neither response's index nor its place tells which is better: as many pairs with either, in either order, of each kind."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from rewardlab.types import BOTH_ORDERS, Order, PreferencePair

CELLS = tuple((preferred, order) for preferred in (0, 1) for order in BOTH_ORDERS)


class Balance:
    """Places pairs, one after another, where their source and category have fewest: counts of the four cells (which response is
    preferred, which is shown first) differ by one at most, where no pair carries a judgment.

    Exchanging the responses of a pair with a judgment exchanges its order, too, so that the judgment still reads right; its
    cells are then two of the four. Among equals the seed and the pair decide.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._cells: Counter[tuple[str, str, int, Order]] = Counter()

    def place(self, pair: PreferencePair) -> PreferencePair:
        """Return the pair, its responses exchanged or not; one without label stays as it is."""
        if pair.preferred is None:
            return pair
        dice = random.Random(f"place {self._seed} {pair.pair_id}")
        open_cells = [cell for cell in CELLS if not pair.judgment or self._at(pair, cell[0]).order == cell[1]]
        dice.shuffle(open_cells)
        preferred, order = min(open_cells, key=lambda cell: self._cells[pair.source, pair.category, *cell])
        self._cells[pair.source, pair.category, preferred, order] += 1
        return replace(self._at(pair, preferred), order=order)

    @staticmethod
    def _at(pair: PreferencePair, preferred: int) -> PreferencePair:
        return pair if pair.preferred == preferred else pair.swap()
