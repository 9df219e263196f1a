"""Which pairs to train on next, as a plan says; those whose label the student has reason to doubt are put aside.

A pair that a judge gets wrong every time, in both orders, is as likely mislabelled as hard: it is to be labelled again. That
guard is ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import Shard
from rewardlab.data.votes import StoredVote
from rewardlab.distill.difficulty import Difficulty, agreement, difficulty_of, histogram, student_votes
from rewardlab.distill.plans import parse_plan
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

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
    """Return the pairs that ``plan`` (:mod:`rewardlab.distill.plans`) chooses. Raises ConfigError for an unknown plan,
    DataError where the votes name pairs that are not there, or nothing is known that the plan could go by.
    """
    choose_places = parse_plan(plan)
    labels: list[int | None] = []
    domains: list[str] = []
    by_teacher: list[Difficulty] = []
    for pair in pairs:
        labels.append(pair.preferred)
        domains.append(f"{pair.source} {pair.category}")
        by_teacher.append(difficulty_of(pair))
    student = student_votes(labels, votes or ())
    if votes is not None and not student:
        raise DataError("no labelled pair has a vote; run `rewardlab bench run pairs` on the same data first")
    difficulties = [
        Difficulty(d.attempts, d.teacher_share, student[n].student_rate, student[n].suspect) if n in student else d
        for n, d in enumerate(by_teacher)
    ]
    if plan.startswith(("hardest", "rlcs")) and not student:
        raise DataError(f"plan {plan!r} goes by a judge's votes; give --votes, the votes.jsonl of `rewardlab bench run pairs`")
    if plan.startswith("attempts") and all(d.attempts is None for d in difficulties):
        raise DataError(f"plan {plan!r} goes by the teacher's attempts, and no pair has any; run `rewardlab distill` first")
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
