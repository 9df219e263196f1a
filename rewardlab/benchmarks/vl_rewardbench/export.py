"""Votes as VL-RewardBench's ``inference.py`` writes its draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rewardlab.benchmarks.base import Row, vote_text
from rewardlab.benchmarks.vl_rewardbench.official import KS, answer_number, draw_status, score_draws
from rewardlab.types import BOTH_ORDERS, Judgment, Order
from rewardlab.verdicts.votes import in_order


def draws_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return up to ten draws of each pair, each in an order drawn by ``seed``; the votes of an order in their sequence."""
    dice, records = random.Random(seed), []
    for row, judgment in zip(rows, judgments, strict=True):
        pools = {order: list(in_order(judgment.votes, order)) for order in BOTH_ORDERS}
        for _ in range(min(10, min(map(len, pools.values())))):
            order = dice.choice(BOTH_ORDERS)
            text = vote_text(pools[order].pop(0), "overall_judgment", verdict_format)
            meta: dict[str, Any] = {"filter_choice": text, "random_number": int(order is Order.SWAPPED)}
            ranking = [0, 1] if row.pair.preferred == 0 else [1, 0]
            pair = {"id": row.pair.pair_id, "query": row.pair.question, "response": list(row.pair.responses)}
            record: dict[str, Any] = {**pair, "ranking": ranking, "meta": meta}
            # cal.py reads what its inference found before it finds it anew from the text
            number = answer_number(text)
            reading = {"filter_number": -1 if number is None else number, "flag_status": draw_status(record)}
            records.append({**record, "meta": {**meta, **reading}})
    return records


def lines_of_export(rows: Sequence[Row], records: Sequence[Any]) -> list[str]:
    """Return what the scorer prints on exported draws, for each K that there are draws for."""
    ks = [k for k in KS if k * len(rows) <= len(records)]
    return [line for at_k in score_draws(records, ks or [1]) for line in at_k.lines()]
