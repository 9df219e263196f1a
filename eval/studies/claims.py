"""Which claims of these papers hold here? ``python -m eval.studies claims``

A claim is one difference between two arms, by seed. `claims.csv` has the claims; the numbers are those of the studies' trials.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.studies.long_report import flat_row, rows_at
from eval.studies.study import Record
from eval.studies.tables import Mean, cell, mean_of, page, table

LONG, POLICY, STABILITY = "long", "policy", "stability"  # studies
GAIN, WINDOW = 0.05, 60_000  # CPU seconds are counted until the rollouts of so many tokens are right so much more often
UNITS = {  # of scores; that of others is points of right judgments or answers
    "greedy_accuracy": "points, greedy",
    "vote_5": "points, majority of 5",
    "any_5": "points, any of 5",
    "consistent": "points, reasoning that agrees",
    "waits": 'points, judgments with "wait"',
    "findings_true": "points, right findings",
    "follows": "points, verdicts that follow",
    "swap_consistency": "points, same winner in both orders",
}
RATIOS = {  # scores that are compared as a ratio
    "length": "times the tokens",
    "cpu_to_level": f"times the CPU seconds to rollouts {100 * GAIN:.0f} points above the start, without the critic's fit",
}


@dataclass(frozen=True)
class Claim:
    """The score of ``arm`` is higher (``sign`` 1) or lower (-1) than that of ``against``; an empty name is the judge before RL.
    ``other_score``: the score of ``against``, if it is another one. ``when``: when the effect exists, in a sentence."""

    paper: str
    text: str
    arm: str
    against: str
    score: str = "accuracy"
    sign: int = 1
    other_score: str = ""
    study: str = LONG
    when: str = ""


def read_claims(file: Path = Path(__file__).with_name("claims.csv")) -> tuple[Claim, ...]:
    """Return the claims of a table with a column for each field."""
    with file.open(encoding="utf-8", newline="") as rows:
        return tuple(Claim(**row | {"sign": int(row["sign"])}) for row in csv.DictReader(rows))  # type: ignore[arg-type]


CLAIMS = read_claims()
Rows = Mapping[str, Mapping[int, Record]]  # of a study: by arm ("": before training) and seed


def cpu_to_level(record: Record) -> float | None:
    """Return the CPU seconds of training until the right rollouts in a window of :data:`WINDOW` tokens are on average
    :data:`GAIN` above the held-out accuracy of the judge before RL, in the middle of that window; None if they never are."""
    series, level = record["series"], (record["start"] or record["plain"])["accuracy"] + GAIN
    right = series.get("last_right") or series.get("right") or [None] * len(series["tokens"])
    for until in (tokens for tokens in series["tokens"] if tokens >= WINDOW):
        batches = [
            (of, seconds)
            for of, tokens, seconds in zip(right, series["tokens"], series["cpu_s"], strict=True)
            if until - WINDOW < tokens <= until and of is not None
        ]
        fraction, middle = np.mean(batches, axis=0) if batches else (0.0, 0.0)
        if fraction >= level:
            return float(middle)
    return None


def long_rows(records: Sequence[Record], budget: int) -> Rows:
    """Return the rows of the long study at a budget."""
    rows: dict[str, dict[int, Record]] = {"": {record["seed"]: flat_row(record["plain"]) for record in records}}
    for record in records:
        for seed, row in rows_at([record], budget).items():
            rows.setdefault(record["arm"], {})[seed] = {**flat_row(row), "cpu_to_level": cpu_to_level(record)}
    return rows


def rows_by_arm(records: Sequence[Record]) -> Rows:
    """Return the rows of a study whose trials differ in arm and seed alone."""
    rows: dict[str, dict[int, Record]] = {}
    for record in records:
        rows.setdefault(record["arm"], {})[record["seed"]] = record
    return rows


def effect_of(claim: Claim, rows: Rows) -> dict[str, Any]:
    """Return the mean difference, or ratio, by seed with its interval, and what it says of the claim.

    Arms with exactly equal scores in most seeds differ in nothing that acts: the claim is not tested. ``seeds`` counts the
    seeds with both arms; ``missing`` those of them without one of the two scores, and then there is no
    effect: a judgment's length or a level that is never reached has no mean."""
    ours, theirs = rows.get(claim.arm, {}), rows.get(claim.against, {})
    seeds = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[seed].get(claim.score), theirs[seed].get(claim.other_score or claim.score)) for seed in seeds]
    whole = [(a, b) for a, b in pairs if a is not None and b is not None]
    ratio = claim.score in RATIOS
    effect = mean_of([math.log(a / b) if ratio else a - b for a, b in whole]) if len(whole) == len(pairs) else None
    facts = {
        "effect": effect,
        "seeds": len(seeds),
        "missing": len(pairs) - len(whole),
        "finding": "not tested" if 2 * sum(a == b for a, b in whole) > len(pairs) else finding_of(effect, claim.sign),
    }
    if effect and ratio:
        interval = effect["interval"] and [math.exp(bound) for bound in effect["interval"]]
        facts["effect"] = {"mean": math.exp(effect["mean"]), "interval": interval}
    return facts


def finding_of(effect: Mean | None, sign: int) -> str:
    """Return what an effect says of a claim: its interval is on the claimed side of 0, on the other one, or on both."""
    if effect is None:
        return "no value"
    if effect["interval"] is None:
        return "one seed"
    low, high = sorted(sign * bound for bound in effect["interval"])
    return "holds" if low > 0 else "reversed" if high < 0 else "open"


def summarize_claims(rows: Mapping[str, Rows], facts: Sequence[str]) -> dict[str, Any]:
    """Return every claim with its effect; ``rows`` by study, ``facts`` for the head of the page."""
    claims = [
        {**{name: getattr(claim, name) for name in Claim.__dataclass_fields__}, **effect_of(claim, rows.get(claim.study, {}))}
        for claim in CLAIMS
    ]
    return {"facts": list(facts), "claims": claims}


def claims_markdown(summary: dict[str, Any]) -> str:
    """Return the table of claims, and a list of those whose arms have no trial yet."""
    measured = [claim for claim in summary["claims"] if claim["seeds"]]
    rest = [claim for claim in summary["claims"] if not claim["seeds"]]
    counts = Counter(claim["finding"] for claim in measured)
    findings = ", ".join(f"{finding}: {number}" for finding, number in counts.most_common())
    facts = [
        *summary["facts"],
        f"{len(measured)} claims are measured ({findings}), {len(rest)} are not yet.",
        "Effect: the mean difference by seed between two arms, with Student's 95 % interval over seeds. A claim holds if its "
        "interval is on the claimed side of zero. It is open if zero is within: an effect up to its ends may exist. It is not "
        "tested if both arms have exactly equal scores in most seeds.",
    ]
    head = ["paper", "claim", "arms", "effect", "seeds", "finding", "when it exists"]
    waiting = [[claim["paper"], claim["text"], _arms(claim)] for claim in rest]
    parts = table(head, [_row(claim) for claim in measured])
    return page("Claims", facts, [*parts, *(["Not measured yet:", *table(head[:3], waiting)] if rest else [])])


def _row(claim: Mapping[str, Any]) -> list[str]:
    ratio = RATIOS.get(claim["score"])
    shown = cell(claim["effect"], 1, 2) if ratio else cell(claim["effect"], 100, sign=True)
    effect = f"{shown} {ratio or UNITS.get(claim['score'], 'points')}" if claim["effect"] else shown
    missing = f", no value in {claim['missing']}" if claim["missing"] else ""
    seeds = f"{claim['seeds']}{missing}"
    return [claim["paper"], claim["text"], _arms(claim), effect, seeds, claim["finding"], claim["when"]]


def _arms(claim: Mapping[str, Any]) -> str:
    return f"`{claim['arm'] or 'before'}`, `{claim['against'] or 'before'}`"
