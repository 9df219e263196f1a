"""A reward for naming the same winner whichever response is shown first.

It is computed across the two orders of a pair and added to each rollout's reward before any baseline is taken; baselines
stay within one order (see :mod:`rewardlab.rl.groups`).
"""

from __future__ import annotations

from collections.abc import Sequence


def swap_agreement(
    pair_ids: Sequence[str],
    orders: Sequence[str],
    winners: Sequence[int | None],
    *,
    among: Sequence[tuple[str, str, int | None]] | None = None,
) -> list[float]:
    """For each rollout, the share of the *other* order's rollouts of its pair that name the winner it names, in 0..1.

    ``winners`` are responses (0 or 1), not positions; None where no verdict was read. A rollout without a verdict gets 0,
    and one of the other order counts as naming neither. Without any rollout in the other order the agreement is 0.
    ``among`` are the (pair, order, winner) of all rollouts, these included, where these are a part of them.

    A judge that always names the first position gets 0 everywhere, one that always names the right response 1: unlike a
    bonus for agreeing within one order, this one pays nothing for a position bias.
    """
    seen: dict[str, dict[str, list[int | None]]] = {}
    for pair, order, winner in zip(pair_ids, orders, winners, strict=True) if among is None else among:
        seen.setdefault(pair, {}).setdefault(order, []).append(winner)
    agreements = []
    for pair, order, winner in zip(pair_ids, orders, winners, strict=True):
        others = [w for other, names in seen[pair].items() if other != order for w in names]
        same = sum(w == winner for w in others) if winner is not None else 0
        agreements.append(same / len(others) if others else 0.0)
    return agreements
