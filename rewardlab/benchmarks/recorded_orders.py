"""In which orders a benchmark's pairs are shown, and what a recording has to say of it.

Much of the field samples each pair in one drawn order: VL-RewardBench's own inference, lmms-eval, VLMEvalKit. Such a recording
is scored in the orders it has. Scored as if both had been asked, half of its samples would be missing, and its accuracy halved.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.passes import AnyJudge
from rewardlab.benchmarks.replay import Replay
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import ORDER_POLICIES, draw_orders
from rewardlab.types import BOTH_ORDERS, Order

AUTO, RECORDED = "auto", "recorded"
POLICIES = (AUTO, *ORDER_POLICIES, RECORDED)
MOST_LACKING = 0.1  # share of the rows with samples that may lack those of an order before the recording is another protocol's


def check_policy(policy: str) -> None:
    """Raise ConfigError for an order policy that a run does not have."""
    if policy not in POLICIES:
        raise ConfigError(f"unknown order policy {policy!r}; expected one of {', '.join(POLICIES)}")


def resolve_policy(policy: str, judge: AnyJudge, votes: int | None) -> str:
    """Return what ``auto`` stands for: the orders of a recording that lacks one order of many rows, else both.

    ``votes`` are those wanted in each order; None: all. Raise ConfigError where the orders of a recording are asked for and the
    judge is none.
    """
    if policy == RECORDED and not isinstance(judge, Replay):
        raise ConfigError(f"--orders recorded is for recordings (--judge replay:FILE), and {judge.name} is none; leave it out")
    if policy != AUTO:
        return policy
    return RECORDED if isinstance(judge, Replay) and _is_lopsided(judge, votes) else "both"


def _uneven(replay: Replay, votes: int | None) -> list[int]:
    """Rows with samples that have not as many of ``votes`` in one order as in the other."""
    most = votes or replay.max_votes
    return [row for row in sorted(replay.rows) if len({min(most, number) for number in replay.counts(row)}) > 1]


def _is_lopsided(replay: Replay, votes: int | None) -> bool:
    return len(_uneven(replay, votes)) > MOST_LACKING * len(replay.rows)


def shown_orders(
    policy: str, judge: AnyJudge, rows: Sequence[Row], seed: int, votes: int | None
) -> tuple[list[tuple[Order, ...]], list[str]]:
    """Return the orders of each row under a resolved ``policy``, and what is to be known of them.

    Raise DataError where a recording lacks the samples of an order for more than a tenth of its rows: its accuracy would be
    that of the gaps.
    """
    notes = []
    if isinstance(judge, Replay) and judge.num_unordered:
        notes.append(f"{judge.num_unordered:,} recorded texts name no order and are taken as shown in the order of the data")
    if policy == RECORDED:
        assert isinstance(judge, Replay)
        orders, more = _recorded(judge, rows)
        return orders, notes + more
    orders = draw_orders(policy, len(rows), seed)
    if isinstance(judge, Replay):
        _check_orders(judge, rows, orders, policy, votes)
    return orders, notes


def _recorded(replay: Replay, rows: Sequence[Row]) -> tuple[list[tuple[Order, ...]], list[str]]:
    """The orders that each row has samples in; a row without any counts as a failure of the first order, or of both where most
    rows have both."""
    of_rows = {row.row: tuple(order for order, n in zip(BOTH_ORDERS, replay.counts(row.row), strict=True) if n) for row in rows}
    present = [orders for orders in of_rows.values() if orders]
    num_one = sum(len(orders) == 1 for orders in present)
    absent = (Order.GIVEN,) if 2 * num_one > len(present) else BOTH_ORDERS
    notes = [
        f"scored in the orders of the recording: {num_one:,} of {len(rows):,} rows have samples in one order only"
        + ("; nothing is known of the other order" if num_one else "")
    ]
    ahead = sum(orders == (_preferred_first(row),) for row, orders in ((row, of_rows[row.row]) for row in rows))
    if num_one and ahead in (0, num_one) and num_one > 1:
        place = "first" if ahead else "second"
        notes.append(
            f"the better response stands {place} in all of these: a judge that always names the {place} would be right in each"
        )
    samples = {sum(replay.counts(row.row)) for row in rows} - {0}
    if len(samples) > 1:
        notes.append(f"rows have between {min(samples)} and {max(samples)} samples; each is judged by those that it has")
    return [of_rows[row.row] or absent for row in rows], notes


def _preferred_first(row: Row) -> Order:
    return Order.SWAPPED if row.pair.preferred == 1 else Order.GIVEN


def _check_orders(
    replay: Replay, rows: Sequence[Row], orders: Sequence[tuple[Order, ...]], policy: str, votes: int | None
) -> None:
    cure = "score them as they were recorded: --orders recorded, or leave --orders out"
    known = {row.row for row in rows} & replay.rows
    if policy == "both":
        uneven = set(_uneven(replay, votes)) & known
        if len(uneven) <= MOST_LACKING * len(known):
            return
        one = sum(0 in replay.counts(row) for row in uneven)
        how = "samples in one order only" if 2 * one >= len(uneven) else "fewer samples in one order than in the other"
        number = one if 2 * one >= len(uneven) else len(uneven)
        raise DataError(f"{replay.name}: {number:,} of {len(rows):,} rows have {how}; {cure}")
    lacking = sum(
        any(not replay.counts(row.row)[BOTH_ORDERS.index(order)] for order in wanted)
        for row, wanted in zip(rows, orders, strict=True)
        if row.row in known
    )
    if lacking > MOST_LACKING * len(known):
        raise DataError(
            f"{replay.name}: {lacking:,} of {len(rows):,} rows have no sample in the order that --orders {policy} shows "
            f"them in; {cure}"
        )
