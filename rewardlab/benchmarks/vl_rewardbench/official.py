"""VL-RewardBench's ``cal.py``: majorities of the first K draws, items without a majority for either answer left out.

Quirks, kept because published numbers have them:

- *Dropped failures.* A draw that the pattern does not match counts as ``doesntMatch``, an item without a strict majority for
  one answer (ties included) as other; neither is in any denominator. A judge that answers one item of ten, right, scores 100 %.
- *Any other number agrees.* A draw agrees unless it names the rejected answer: "Answer 3 is better" agrees.
- *Far matches.* New lines are removed and the pattern is greedy: the last "Answer X is better" anywhere after the first
  "Overall Judgment" or "Therefore", in whatever sentence, is the verdict; the heading is optional in effect, for "therefore"
  may stand in any sentence.
- *Merged rows.* Items are keyed by id, query and the sorted responses, not by row: rows that share them are one item.
- *Shuffled draws.* Which K draws are looked at is random (seed 1234 once, the generator going on from K to K), and the swap it
  shuffles with is not uniform.
- *Reasoning alone* has 1e-6 added to its denominator.

One version of the released file (28 April 2025) misspells a variable in the branch for POVID, and ends in a NameError there;
that of 8 May 2025 has ``hallucination``, as here, which gives the published 183/749/318.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row, vote_text
from rewardlab.types import BOTH_ORDERS, Judgment, Order
from rewardlab.verdicts.votes import in_order

KS = (1, 3, 5, 7, 9)
SEED = 1234
ENDS = "(the scorer ends here: division by zero)"
GROUPS = ("general", "hallucination", "reasoning")
_STATUSES = ("agree", "reject", "doesntMatch")
_PATTERN = re.compile(
    r"(?:Overall Judgment|Therefore)\s*.*\s*-*\s*Answer\s*(\d+)\s*is\s*(?:the\s*)?(?:slightly\s*)?better", re.IGNORECASE
)
_GROUP_OF = {
    "RLAIF": "hallucination",
    "RLHF": "hallucination",
    "hallucination": "hallucination",  # POVID
    "mathverse": "reasoning",
    "mmmu": "reasoning",
}
_SOURCE_OF = {"mathverse": "reasoning", "mmmu": "reasoning"}
_SOURCE_OF |= {name: name for name in ("RLAIF", "RLHF", "hallucination", "wildvision")}


def scorer_group(row_id: str) -> str:
    """Return the group by what is before the first dash or underscore of an id, capitals minded; else general."""
    return _GROUP_OF.get(_prefix(row_id), "general")


def _prefix(row_id: str) -> str:
    return re.split(r"[-_]", row_id)[0]


def answer_number(text: str) -> int | None:
    """The number X of the verdict that the scorer's pattern finds, not necessarily 1 or 2; None where it finds none."""
    match = _PATTERN.search(text.replace("\n", "").replace("*", ""))
    return int(match[1]) if match else None


@dataclass(frozen=True)
class AtK:
    """What is printed for one K. Shares are 0..1; None where the scorer ends in a division by zero before it has them.

    It does so where one of its six sources, or a group, is in the file without one decided item.
    """

    k: int
    num_items: int
    agree: int
    reject: int
    doesnt_match: int
    groups: Mapping[str, float | None]
    overall: float | None
    macro: float | None

    def lines(self) -> Iterator[str]:
        """Yield the lines that the scorer prints."""
        all_items, decided = self.num_items + 1e-6, self.agree + self.reject + 1e-6
        yield f"k={self.k} ----------------"
        yield f"Number of total items: {self.num_items}"
        yield (
            f"Number of agree items: {self.agree}, rate: {round(self.agree / all_items, 4)}, "
            f"normalized rate: {round(self.agree / decided, 4)}"
        )
        yield (
            f"Number of reject items: {self.reject}, rate: {round(self.reject / all_items, 4)}, "
            f"normalized rate: {round(self.reject / decided, 4)}"
        )
        yield f"Number of doesntMatch items: {self.doesnt_match}, rate: {round(self.doesnt_match / all_items, 4)}"
        if self.groups["reasoning"] is None:
            yield ENDS
            return
        yield "=" * 20
        yield "general\t hallucination\t reasoning"
        shares = [share for share in self.groups.values() if share is not None]
        if len(shares) == len(GROUPS):
            yield "\t ".join(f"{100.0 * share:.2f}" for share in shares)
        if self.overall is None or self.macro is None:
            yield ENDS
            return
        yield f"Overall Accuracy: {self.overall * 100:.2f}"
        yield f"Macro Average Acc: {self.macro * 100:.2f}"
        yield "=" * 20


def _shuffled(rows: Sequence[Any], dice: random.Random) -> list[Any]:
    mixed = list(rows)
    for place in range(len(mixed)):
        other = dice.randint(0, len(mixed) - 1)
        mixed[place], mixed[other] = mixed[other], mixed[place]
    return mixed


def draw_status(row: Mapping[str, Any]) -> str:
    """Return what a draw comes to: ``agree``, ``reject`` or ``doesntMatch``."""
    rejected = row["ranking"].index(1 if row["meta"]["random_number"] == 0 else 0) + 1
    number = answer_number(row["meta"]["filter_choice"])
    return "doesntMatch" if number is None else "reject" if number == rejected else "agree"


def _source(row_id: str) -> str | None:
    """The scorer's own finer grouping, each part of which must have a decided item, or it divides by zero; None for the rest,
    which is VLFeedback's."""
    return _SOURCE_OF.get(_prefix(row_id))


def score_draws(rows: Sequence[Mapping[str, Any] | None], ks: Sequence[int] = KS, seed: int = SEED) -> list[AtK]:
    """The scorer on the lines of an inference file, one row per draw.

    A row has ``id, query, response[2], ranking[2]`` and ``meta`` with ``filter_choice`` (the text) and ``random_number`` (0:
    shown as given). Rows that are null are passed over, as there. ``ks`` and ``seed`` are the scorer's own by default.
    """
    dice, table = random.Random(seed), []
    draws = [None if row is None else (_key(row), row["id"], draw_status(row)) for row in rows]
    for k in ks:
        votes: dict[str, list[str]] = {}
        ids: dict[str, str] = {}
        for draw in _shuffled(draws, dice):
            if draw is None:
                continue
            key, row_id, vote = draw
            ids.setdefault(key, row_id)
            if len(item := votes.setdefault(key, [])) < max(k, 1):
                item.append(vote)
        table.append(_at_k(k, votes, ids))
    return table


def _key(row: Mapping[str, Any]) -> str:
    return str(row["id"] + row["query"] + "\t".join(sorted(row["response"])))


def _at_k(k: int, votes: Mapping[str, Sequence[str]], ids: Mapping[str, str]) -> AtK:
    outcome = {key: _majority(item) for key, item in votes.items()}
    right, decided = dict.fromkeys(GROUPS, 0), dict.fromkeys(GROUPS, 0)
    undecided_sources = set(map(_source, ids.values()))
    for key, status in outcome.items():
        group = scorer_group(ids[key])
        right[group] += status == "agree"
        if status in ("agree", "reject"):
            decided[group] += 1
            undecided_sources.discard(_source(ids[key]))
    agree, reject, doesnt_match = (list(outcome.values()).count(status) for status in _STATUSES)
    groups: dict[str, float | None] = dict.fromkeys(GROUPS)
    overall = macro = None
    if not undecided_sources:
        for name in GROUPS:
            denominator = decided[name] + (1e-6 if name == "reasoning" else 0)
            groups[name] = right[name] / denominator if denominator else None
        if all(decided.values()):
            overall = sum(right.values()) / sum(decided.values())
            macro = sum(right[name] / decided[name] for name in reversed(GROUPS)) / 3
    return AtK(k, len(outcome), agree, reject, doesnt_match, groups, overall, macro)


def _majority(statuses: Sequence[str]) -> str | None:
    """Return the status of more than half of an item's draws."""
    return next((status for status in _STATUSES if statuses.count(status) > len(statuses) / 2), None)


def lines_of_draws(rows: list[Any], data: Path | None = None) -> list[str]:
    """Return what the scorer prints on the rows of an inference file; ``data`` is not looked at."""
    if rows and isinstance(rows[0], dict) and "0" in rows[0]:  # one column named 0, as pandas writes a list of objects
        rows = [row["0"] for row in rows]
    lines: list[str] = []
    for at_k in score_draws(rows):
        lines += at_k.lines()
        if at_k.overall is None:  # an exception ends the scorer
            break
    return lines


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
