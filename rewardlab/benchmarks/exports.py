"""A run's votes in the form that a benchmark's own inference writes, so that its own scorer can be asked about them.

A judge that was asked in the benchmark's own words is exported as it spoke. Another one's verdicts are translated into the
benchmark's form; a vote without a verdict becomes an empty text, which every official parser fails on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.mm_rlhf import official as mm_rlhf
from rewardlab.benchmarks.mmrb2 import official as mmrb2
from rewardlab.benchmarks.multimodal_rewardbench import official as multimodal_rewardbench
from rewardlab.benchmarks.vl_rewardbench import official as vl_rewardbench
from rewardlab.data.files import write_atomic
from rewardlab.types import BOTH_ORDERS, Choice, Judgment, Order, Vote
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.votes import in_order, share_for_0

Records = Any  # a list of JSON lines or one JSON object, as the benchmark has it


def _said(vote: Vote, own: str, verdict_format: str) -> str:
    """The vote's text in the format ``own`` of the benchmark."""
    if verdict_format == own:
        return vote.completion.text
    return "" if vote.verdict.choice is None else WRITERS[own](vote.verdict.choice, "").strip()


def _vl_rewardbench(rows: Sequence[Row], judged: Sequence[Judgment], verdict_format: str, seed: int) -> Records:
    """Up to ten draws of each pair, each in an order of its own, drawn by ``seed``; each order's votes as they were cast."""
    dice, records = random.Random(seed), []
    for row, judgment in zip(rows, judged, strict=True):
        pools = {order: list(in_order(judgment.votes, order)) for order in BOTH_ORDERS}
        for _ in range(min(10, min(map(len, pools.values())))):
            order = dice.choice(BOTH_ORDERS)
            vote = pools[order].pop(0)
            text = _said(vote, "overall_judgment", verdict_format)
            meta = {"filter_choice": text, "random_number": int(order is Order.SWAPPED)}
            ranking = [0, 1] if row.pair.preferred == 0 else [1, 0]
            pair = {"id": row.pair.pair_id, "query": row.pair.question, "response": list(row.pair.responses)}
            records.append({**pair, "ranking": ranking, "meta": meta})
    return records


def _multimodal_rewardbench(rows: Sequence[Row], judged: Sequence[Judgment], verdict_format: str, seed: int) -> Records:
    """The first vote in the order of the file."""
    records = []
    for row, judgment in zip(rows, judged, strict=True):
        votes = in_order(judgment.votes, Order.GIVEN)
        output = _said(votes[0], "double_brackets", verdict_format) if votes else ""
        label = "A" if row.pair.preferred == 0 else "B"
        meta = {"Category": row.group.partition("/")[0]}  # its scorer divides safety and reasoning by the id
        records.append({"ID": row.pair.pair_id, "Label": label, "output": output, "Meta": meta})
    return records


def _mm_rlhf(rows: Sequence[Row], judged: Sequence[Judgment], verdict_format: str, seed: int) -> Records:
    """The share of votes for each answer, both orders weighing the same, in place of a scalar model's rewards."""
    records = []
    for row, judgment in zip(rows, judged, strict=True):
        share = share_for_0(judgment.votes)
        rewards = [0.0, 0.0] if share is None else [share, 1 - share]
        records.append({"id": row.cluster, row.slices["medium"]: row.medium, "rewards": rewards})
    return records


def _mmrb2(rows: Sequence[Row], judged: Sequence[Judgment], verdict_format: str, seed: int) -> Records:
    """The first vote in each order; one without a verdict is no judgement."""
    predictions = {}
    for row, judgment in zip(rows, judged, strict=True):
        own = {}
        for name, order in (("forward", Order.GIVEN), ("reverse", Order.SWAPPED)):
            votes = in_order(judgment.votes, order)[:1]
            letters = ["A" if vote.verdict.choice is Choice.FIRST else "B" for vote in votes if vote.verdict.choice]
            own[name] = [{"judgement": letter, "evaluator": "rewardlab", "metadata": {}} for letter in letters]
        predictions[row.pair.pair_id] = own
    return predictions


EXPORTS: dict[str, Callable[[Sequence[Row], Sequence[Judgment], str, int], Records]] = {
    "vl_rewardbench": _vl_rewardbench,
    "multimodal_rewardbench": _multimodal_rewardbench,
    "mm_rlhf": _mm_rlhf,
    "mmrb2": _mmrb2,
}


def write_official(
    benchmark: str, rows: Sequence[Row], judged: Sequence[Judgment], verdict_format: str, seed: int, path: Path
) -> list[str]:
    """Leave a run in ``path`` as the benchmark's own inference would; returns what its scorer prints. [] where it has none.

    ``verdict_format`` is the judge's. Raises OutputError.
    """
    if benchmark not in EXPORTS:
        return []
    records = EXPORTS[benchmark](rows, judged, verdict_format, seed)
    lines = [json.dumps(record) for record in records] if isinstance(records, list) else [json.dumps(records)]
    write_atomic(path, "\n".join(lines) + "\n")
    return official_lines(benchmark, rows, records)


def official_lines(benchmark: str, rows: Sequence[Row], records: Records) -> list[str]:
    """What the benchmark's own scorer prints on exported records."""
    if benchmark == "vl_rewardbench":
        most = len(records) // len(rows)
        found = vl_rewardbench.score(records, ks=[k for k in vl_rewardbench.KS if k <= most] or [1])
        return [line for at_k in found for line in at_k.lines()]
    if benchmark == "multimodal_rewardbench":
        return multimodal_rewardbench.lines(multimodal_rewardbench.score(records))
    if benchmark == "mm_rlhf":
        return mm_rlhf.lines(mm_rlhf.score(records))
    tasks = {row.group: [] for row in rows}
    for row in rows:
        tasks[row.group].append({"id": row.pair.pair_id, "chosen": "A" if row.pair.preferred == 0 else "B"})
    scores = [mmrb2.score(pairs, records, mmrb2.TASKS[name]) for name, pairs in tasks.items()]
    return [line for one in scores for line in one.lines()] + (mmrb2.summary_lines(scores) if len(scores) > 1 else [])
