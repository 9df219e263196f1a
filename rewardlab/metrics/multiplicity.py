"""Several tests at once: p-values that stay honest however many judges are compared."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values (0..1) adjusted by Holm (1979), in the order given: calling those below a level significant errs, once or
    more in all the comparisons, with at most that probability, however they depend on each other."""
    ranked = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ranked):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted
