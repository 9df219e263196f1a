"""How long a call of the engine takes, learnt from recent ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

FORGETTING = 0.9  # of a call's weight, with each later one
OUTDATED = 0.2
PRIOR = 0.05  # how much the prior counts, as a share of the squared mean size
OF_SEQUENCES = 0.75  # share of the time that goes with the sequences, where all calls had one size
NUM_RATIOS = 50  # calls by which the safety margin goes
SAFE_SHARE = 0.9  # of them that took no longer than predicted times the margin
MOST_MARGIN = 3.0


@dataclass
class _Line:
    """Weighted sums of sizes and seconds, and how far predictions were off."""

    weight: float = 0.0
    sizes: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RATIOS))

    def add(self, num: int, seconds: float, forgetting: float) -> None:
        self.weight = forgetting * self.weight + 1
        self.sizes = forgetting * self.sizes + num
        self.seconds = forgetting * self.seconds + seconds
        self.squares = forgetting * self.squares + num**2
        self.products = forgetting * self.products + num * seconds

    def fit(self) -> tuple[float, float]:
        """Return (seconds of a call, seconds of each sequence): least squares, recent calls first. Where all calls had one
        size, ``OF_SEQUENCES`` says it: little enough for the call that other sizes are tried."""
        size, seconds = self.sizes / self.weight, self.seconds / self.weight
        variance = self.squares / self.weight - size**2
        covariance = self.products / self.weight - size * seconds
        prior = PRIOR * size**2
        slope = (covariance + prior * OF_SEQUENCES * seconds / size) / (variance + prior)
        slope = min(max(slope, 0.0), seconds / size)
        return seconds - slope * size, slope


class BatchTimes:
    """Predict the seconds of a call by its number of sequences, for each family of jobs: a part for the call, and one for each
    sequence. What is unknown is predicted to take no time, so that it is tried."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}

    def record(self, family: Hashable, num: int, seconds: float) -> None:
        """Learn from a call. One that took less than half of what was expected says that the rest is out of date."""
        line, expected = self._lines.setdefault(family, _Line()), self.expected(family, num)
        if expected > 0:
            line.ratios.append(seconds / expected)
        line.add(num, seconds, FORGETTING if seconds > expected / 2 else OUTDATED)

    def expected(self, family: Hashable, num: float) -> float:
        """Return the seconds that a call of ``num`` sequences takes on average."""
        line = self._lines.get(family)
        if line is None or not line.weight:
            return 0.0
        of_call, of_sequence = line.fit()
        return of_call + of_sequence * num

    def margin(self, family: Hashable) -> float:
        """Return by which factor calls take longer than expected at most, but for one in ten: 1..3."""
        line = self._lines.get(family)
        if line is None or not line.ratios:
            return 1.0
        ratios = sorted(line.ratios)
        return min(max(1.0, ratios[math.ceil(SAFE_SHARE * len(ratios)) - 1]), MOST_MARGIN)

    def safe(self, family: Hashable, num: float) -> float:
        """Return the seconds within which a call of ``num`` sequences is very likely to be done."""
        return self.margin(family) * self.expected(family, num)

    def size_within(self, family: Hashable, seconds: float, most: int) -> int:
        """Return how many sequences, 1..``most``, a call may have to be safely done within ``seconds``."""
        line = self._lines.get(family)
        if line is None or self.safe(family, most) <= seconds:
            return most
        of_call, of_sequence = line.fit()
        room = seconds / self.margin(family) - of_call
        return max(1, min(most, int(room / of_sequence))) if of_sequence > 0 and room > 0 else 1

    def lasting_twice(self, family: Hashable, num: int, most: int) -> int:
        """Return how many sequences, up to ``most``, a call may have to take twice as long as one of ``num`` sequences."""
        line = self._lines.get(family)
        if line is None:
            return most
        of_call, of_sequence = line.fit()
        return min(most, 2 * num + int(of_call / of_sequence)) if of_sequence > 0 else most

    def efficient_size(self, family: Hashable, most: int) -> int:
        """Return how many sequences a call must have for half the sequences a second that calls of ``most`` have."""
        line = self._lines.get(family)
        if line is None:
            return 1
        of_call, of_sequence = line.fit()
        rate = 0.5 * most / (of_call + of_sequence * most) if of_call + of_sequence * most > 0 else math.inf
        return max(1, min(most, math.ceil(of_call * rate / (1 - of_sequence * rate)))) if of_sequence * rate < 1 else most
