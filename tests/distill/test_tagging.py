"""What a pair's answers come to, and the luck that each of its requests is asked with."""

from __future__ import annotations

from rewardlab.distill.tagging import order_of, seed_of
from rewardlab.types import BOTH_ORDERS


def test_each_request_has_a_seed_of_its_own() -> None:
    """By pair, attempt and the run's seed; the same in every run and process, for a run that goes on asks the same."""
    seeds = {seed_of(f"p{pair}", seed, attempt) for pair in range(200) for seed in (0, 1) for attempt in (1, 2, 3)}
    assert len(seeds) == 200 * 2 * 3
    assert seed_of("p", 7, 1) == 243_893_737
    assert all(0 <= seed < 2**28 for seed in seeds)


def test_orders_take_turns() -> None:
    """From a coin of the pair's own, which falls either way."""
    firsts = [order_of(f"p{pair}", 0, 1) for pair in range(200)]
    assert 60 < sum(order is BOTH_ORDERS[0] for order in firsts) < 140
    assert firsts != [order_of(f"p{pair}", 1, 1) for pair in range(200)]
    for attempt in (2, 3):
        turned = [order if attempt % 2 else order.swap() for order in firsts]
        assert [order_of(f"p{pair}", 0, attempt) for pair in range(200)] == turned
