"""What is measured while training, as means over all processes: of unequal shards, a mean of means is not the mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable


class Mean(float):
    """A mean that knows how much it is the mean of; anything that does not care takes it for the number it is."""

    weight: float

    def __new__(cls, value: float, weight: float) -> Mean:
        mean = super().__new__(cls, value)
        mean.weight = float(weight)
        return mean


class Tallies:
    """Sums and weights by name, until they are told. Of a name whose last part begins with ``max``, the largest value."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._largest: dict[str, float] = {}

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """``value`` is a mean over ``weight`` things (tokens, rollouts, batches); one over none, or nan, says nothing."""
        value = float(value)  # a Mean would be told to the other processes as such
        if value != value or weight <= 0:
            return
        if name.rpartition("/")[2].startswith("max"):
            self._largest[name] = max(value, self._largest.get(name, value))
            return
        self._sums[name][0] += value * weight
        self._sums[name][1] += weight

    def tell(self, gather: Callable[[list[object]], list[object]]) -> dict[str, float]:
        """The means over what all processes have added since the last telling; ``gather`` joins their lists into one."""
        told = gather([(dict(self._sums), self._largest)])
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        largest: dict[str, float] = {}
        for of_one, largest_of_one in told:  # type: ignore[misc]
            for name, (total, weight) in of_one.items():
                sums[name][0] += total
                sums[name][1] += weight
            for name, value in largest_of_one.items():
                largest[name] = max(value, largest.get(name, value))
        self._sums.clear()
        self._largest = {}
        return {name: total / weight for name, (total, weight) in sorted(sums.items())} | largest
