"""Select the pairs to train on by their difficulty, and set aside those whose label is in doubt.

Difficulty is measured in three ways. *Attempts*: how often the teacher was queried until it agreed with the label (R1-Reward,
arXiv 2505.02835). *Teacher share*: the fraction of its votes over both orders that name the label. *Student rate*: the same for
the judge to be trained. The first costs least and says least: one lucky guess makes a hard pair easy. A plan selects by these:

``attempts>=2``         the paper's: pairs that the teacher did not solve at once (arXiv 2505.02835)
``tiers:medium,hard``   all pairs of some tiers
``hardest:0.1``         the tenth that the student does worst on within each source and category (Pre-PPO, arXiv 2503.22230)
``rlcs:0.5``            half, sampled with weights 4 p (1 - p) of the student's rate p (arXiv 2507.01006)
``mix:easy=0.2,hard=0.8``  as many as there can be with these fractions of tiers
``all``

A pair that a judge gets wrong every time, in both orders, is as likely mislabelled as hard: such suspects are in no plan. That
guard is ours.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import TypedDict

import torch
from scipy.stats import spearmanr

from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import Shard
from rewardlab.data.votes import StoredVote
from rewardlab.distill.statistics import TAGS, tag_rank
from rewardlab.errors import ConfigError, DataError
from rewardlab.rl.selection import TIER_BOUNDS, TIERS, difficulty_weights, hardest_within
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, choice_of

SURE = 4  # votes in each order that must all be wrong: by chance that is 1 pair in 256


class Tier(StrEnum):
    """Offline tiers of RLCS (arXiv 2507.01006), at the pass rates of :data:`rewardlab.rl.selection.TIER_BOUNDS`."""

    EASY = "easy"  # right in 90 % or more of the votes; the teacher's first attempt
    MEDIUM = "medium"  # 60 % or more; its second
    HARD = "hard"  # 25 % or more: a coin is right in 50 %; its third
    VERY_HARD = "very_hard"  # rather wrong than right, or mislabelled; unsolved
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Difficulty:
    """Hold what is known of one pair: ``attempts`` 1..3, or 4 for unsolved; shares 0..1 of right votes, one without a verdict
    counting as wrong; ``suspect``: the student is wrong every time in both orders, with verdicts throughout, so that the label
    is in doubt.
    """

    attempts: int | None = None
    teacher_share: float | None = None
    student_rate: float | None = None
    suspect: bool = False

    @property
    def tier(self) -> Tier:
        """Return the level by the student's rate where there is one, else by the teacher's share, else by attempts."""
        rate = self.student_rate if self.student_rate is not None else self.teacher_share
        if rate is not None:
            return Tier(TIERS[bisect_right(TIER_BOUNDS, rate)])
        if self.attempts is not None:
            return (Tier.EASY, Tier.MEDIUM, Tier.HARD, Tier.VERY_HARD)[self.attempts - 1]
        return Tier.UNKNOWN


def student_votes(labels: Sequence[int | None], votes: Iterable[StoredVote]) -> dict[int, Difficulty]:
    """Return by row the rate of right votes and whether the label is in doubt, of rows that are labelled and have votes.

    Raises DataError where the votes name rows that are not there.
    """
    hits: dict[int, dict[Order, list[bool]]] = {}
    invalid: set[int] = set()
    for vote in votes:
        if vote.row >= len(labels):
            raise DataError(
                f"the votes cover at least {vote.row + 1:,} pairs, but the data have {len(labels):,}: this is another file"
            )
        if (preferred := labels[vote.row]) is None:
            continue
        by_order = hits.setdefault(vote.row, {order: [] for order in BOTH_ORDERS})
        by_order[vote.order].append(vote.choice is choice_of(preferred, vote.order))
        if vote.choice is None:
            invalid.add(vote.row)
    difficulties = {}
    for row, by_order in hits.items():
        row_hits = [hit for order_hits in by_order.values() for hit in order_hits]
        always_wrong = all(len(order_hits) >= SURE and not any(order_hits) for order_hits in by_order.values())
        # A judge that gave no verdict has not contradicted the label.
        difficulties[row] = Difficulty(student_rate=sum(row_hits) / len(row_hits), suspect=always_wrong and row not in invalid)
    return difficulties


def agreement(difficulties: Sequence[Difficulty]) -> dict[str, dict[str, float | list[float] | None]]:
    """Return Spearman's rho of every two measures as hardness, with its number of pairs and 95 % interval (Fisher's z); None
    where one of the two does not vary or fewer than four pairs have both.
    """
    measures: Mapping[str, list[float | None]] = {
        "attempts": [None if d.attempts is None else float(d.attempts) for d in difficulties],
        "teacher_share": [None if d.teacher_share is None else 1 - d.teacher_share for d in difficulties],
        "student_rate": [None if d.student_rate is None else 1 - d.student_rate for d in difficulties],
    }
    correlations = {}
    for first, second in combinations(measures, 2):
        both = [(a, b) for a, b in zip(measures[first], measures[second], strict=True) if a is not None and b is not None]
        correlations[f"{first} / {second}"] = _rho(both)
    return correlations


def _rho(both: Sequence[tuple[float, float]]) -> dict[str, float | list[float] | None]:
    if len(both) < 4 or any(len({pair[side] for pair in both}) < 2 for side in (0, 1)):
        return {"pairs": len(both), "spearman": None, "interval": None}
    rho = float(spearmanr([a for a, _ in both], [b for _, b in both]).statistic)
    if abs(rho) >= 1:
        return {"pairs": len(both), "spearman": rho, "interval": [rho, rho]}
    z, half = math.atanh(rho), 1.96 / math.sqrt(len(both) - 3)
    return {"pairs": len(both), "spearman": rho, "interval": [math.tanh(z - half), math.tanh(z + half)]}


def histogram(difficulties: Iterable[Difficulty]) -> dict[str, dict[str, int]]:
    """Return how many pairs there are of each tier and of each number of attempts."""
    tiers, attempts = Counter[Tier](), Counter[int | None]()
    for difficulty in difficulties:
        tiers[difficulty.tier] += 1
        attempts[difficulty.attempts] += 1
    by_tag = {tag: attempts[n] for n, tag in enumerate(TAGS, start=1)} | {"not asked": attempts[None]}
    return {"tier": {tier.value: tiers[tier] for tier in Tier}, "attempts": by_tag}


Plan = Callable[[Sequence[Difficulty], Sequence[str], int], list[int]]


def _share(text: str, plan: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"plan {plan!r}: expected a fraction from 0 to 1 after the colon, got {text!r}")
    return share


def _tier(text: str, plan: str) -> Tier:
    try:
        return Tier(text.strip())
    except ValueError as error:
        raise ConfigError(f"plan {plan!r}: no tier {text!r}; expected one of {', '.join(Tier)}") from error


def at_least(difficulties: Sequence[Difficulty], attempts: int) -> list[int]:
    """Return the places of pairs that took the teacher ``attempts`` or more; unsolved ones count as four, untagged ones are
    left out.
    """
    return [n for n, d in enumerate(difficulties) if d.attempts is not None and d.attempts >= attempts and not d.suspect]


def of_tiers(difficulties: Sequence[Difficulty], tiers: Sequence[Tier]) -> list[int]:
    return [n for n, d in enumerate(difficulties) if d.tier in tiers and not d.suspect]


def hardest(difficulties: Sequence[Difficulty], domains: Sequence[str], share: float) -> list[int]:
    """Return those of the lowest student rates, standardised within each domain; suspects are taken out before the share is
    counted.
    """
    rows = [n for n, d in enumerate(difficulties) if d.student_rate is not None and not d.suspect]
    places = hardest_within([difficulties[n].student_rate or 0.0 for n in rows], [domains[n] for n in rows], share)
    return [rows[n] for n in places]


def weighted(difficulties: Sequence[Difficulty], share: float, seed: int) -> list[int]:
    """Draw a share of those with a student rate, without replacement, those of middling rate most."""
    rows = [n for n, d in enumerate(difficulties) if d.student_rate is not None and not d.suspect]
    if not (number := round(share * len(rows))):
        return []
    weights = difficulty_weights(torch.tensor([difficulties[n].student_rate for n in rows], dtype=torch.float64))
    places = torch.multinomial(weights, number, replacement=False, generator=torch.Generator().manual_seed(seed))
    return sorted(rows[n] for n in places.tolist())


def mixture(difficulties: Sequence[Difficulty], shares: dict[Tier, float], seed: int) -> list[int]:
    """Return the most pairs of which each tier has its share (they add up to 1): the scarcest tier decides."""
    by_tier = {tier: of_tiers(difficulties, [tier]) for tier in shares}
    total = min(int(len(by_tier[tier]) / share + 1e-9) for tier, share in shares.items() if share)
    rng = random.Random(seed)
    sizes = {tier: min(len(by_tier[tier]), round(share * total)) for tier, share in shares.items()}
    return sorted(n for tier, size in sizes.items() for n in rng.sample(by_tier[tier], size))


def parse_plan(text: str) -> Plan:
    """Return the plan of that name. Raises ConfigError."""
    name, _, rest = text.replace(" ", "").partition(":")
    if name == "all":
        return lambda difficulties, domains, seed: [n for n, d in enumerate(difficulties) if not d.suspect]
    if name in ("attempts>=2", "attempts>=3", "attempts>=4"):
        return lambda difficulties, domains, seed: at_least(difficulties, int(name[-1]))
    if name == "tiers":
        tiers = [_tier(piece, text) for piece in rest.split(",")]
        return lambda difficulties, domains, seed: of_tiers(difficulties, tiers)
    if name == "hardest":
        share = _share(rest, text)
        return lambda difficulties, domains, seed: hardest(difficulties, domains, share)
    if name == "rlcs":
        share = _share(rest, text)
        return lambda difficulties, domains, seed: weighted(difficulties, share, seed)
    if name == "mix":
        pieces = [piece.partition("=") for piece in rest.split(",")]
        shares = {_tier(tier, text): _share(value, text) for tier, _, value in pieces}
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise ConfigError(f"plan {text!r}: the shares add up to {sum(shares.values()):g}; expected 1")
        return lambda difficulties, domains, seed: mixture(difficulties, shares, seed)
    raise ConfigError(
        f"unknown plan {text!r}; expected all, attempts>=2, tiers:medium,hard, hardest:0.1, rlcs:0.5 or mix:easy=0.2,hard=0.8"
    )


HARD, SUSPECTS, REPORT = "hard.parquet", "suspects.parquet", "report.json"


class SelectionReport(TypedDict):
    """The content of ``report.json``: histograms before and after, and how far the measures of difficulty agree."""

    plan: str
    num_pairs: int
    num_chosen: int
    num_suspects: int
    before: dict[str, dict[str, int]]
    after: dict[str, dict[str, int]]
    agreement: dict[str, dict[str, float | list[float] | None]]


@dataclass(frozen=True)
class Selection:
    """Places of the ``chosen`` pairs and of the ``suspects``, and the difficulty of each pair."""

    chosen: list[int]
    suspects: list[int]
    difficulties: list[Difficulty]

    def report(self, plan: str) -> SelectionReport:
        return {
            "plan": plan,
            "num_pairs": len(self.difficulties),
            "num_chosen": len(self.chosen),
            "num_suspects": len(self.suspects),
            "before": histogram(self.difficulties),
            "after": histogram(self.difficulties[n] for n in self.chosen),
            "agreement": agreement(self.difficulties),
        }


def select(pairs: Iterable[PreferencePair], votes: Iterable[StoredVote] | None, plan: str, *, seed: int = 0) -> Selection:
    """Return the pairs that ``plan`` (:mod:`rewardlab.distill.selection`) chooses. Raises ConfigError for an unknown plan,
    DataError where the votes name pairs that are not there, or nothing is known that the plan could go by.
    """
    choose_places = parse_plan(plan)
    labels: list[int | None] = []
    domains: list[str] = []
    by_teacher: list[Difficulty] = []
    for pair in pairs:
        labels.append(pair.preferred)
        domains.append(f"{pair.source} {pair.category}")
        by_teacher.append(Difficulty(tag_rank(pair.attempts) if pair.attempts in TAGS else None, pair.teacher_share))
    student = student_votes(labels, votes or ())
    if votes is not None and not student:
        raise DataError("no labelled pair has a vote; run `rewardlab bench run pairs` on the same data first")
    difficulties = [
        replace(d, student_rate=student[n].student_rate, suspect=student[n].suspect) if n in student else d
        for n, d in enumerate(by_teacher)
    ]
    if plan.startswith(("hardest", "rlcs")) and not student:
        raise DataError(f"plan {plan!r} needs a judge's votes; give --votes, the votes.jsonl of `rewardlab bench run pairs`")
    if plan.startswith("attempts") and all(d.attempts is None for d in difficulties):
        raise DataError(f"plan {plan!r} needs the teacher's attempts, but no pair has any; run `rewardlab distill` first")
    suspects = [n for n, d in enumerate(difficulties) if d.suspect]
    return Selection(choose_places(difficulties, domains, seed), suspects, difficulties)


def write_selection(pairs: Iterable[PreferencePair], selection: Selection, plan: str, out: Path) -> SelectionReport:
    """Write ``hard.parquet``, ``suspects.parquet`` and ``report.json``; return the report. Raises OutputError."""
    chosen, suspects = set(selection.chosen), set(selection.suspects)
    shards = Shard(out / HARD), Shard(out / SUSPECTS)
    for n, pair in enumerate(pairs):
        if n in chosen or n in suspects:
            shards[n in suspects].add(pair)
    for shard in shards:
        shard.close()
    report = selection.report(plan)
    write_atomic(out / REPORT, json.dumps(report, indent=1) + "\n")
    return report
