"""What a method study still has to do, and how long that takes by what its trials took so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.studies.method_summary import cpu_seconds, of_table
from eval.studies.methods import ARMS, VALIDATION_SEED, Arm, Settings, budgets_of, choose_rates, validated

Record = dict[str, Any]


@dataclass(frozen=True)
class Todo:
    """Trials of an arm, done and in all, and the CPU seconds of one (None: not known yet)."""

    arm: str
    validation: tuple[int, int]
    study: tuple[int, int]
    seconds: tuple[float | None, float | None]

    @property
    def left_s(self) -> float | None:
        """CPU seconds of what is left; None where they are not known."""
        parts = [
            0.0 if done == total else None if cost is None else (total - done) * cost
            for (done, total), cost in zip((self.validation, self.study), self.seconds, strict=True)
        ]
        return None if None in parts else float(sum(part for part in parts if part is not None))


def seconds_of(arm: str, records: Sequence[Record], settings: Settings) -> tuple[float | None, float | None]:
    """Return the CPU seconds of a validation trial and of one of the table: of the arm's own records, else by tokens from its
    other trials, else from those of arms like it: with a critic, without, or with completions in its place; else of all."""
    tokens = (settings.budgets[0], budgets_of(arm, settings)[-1])
    is_validation = (True, False)

    def cost(of: Sequence[Record], kind: int) -> float | None:
        same = [r["cpu_s"] for r in of if (r["seed"] >= VALIDATION_SEED) == is_validation[kind]]
        other = [r["cpu_s"] for r in of if (r["seed"] >= VALIDATION_SEED) != is_validation[kind]]
        if same:
            return float(np.mean(same))
        return float(np.mean(other)) * tokens[kind] / tokens[1 - kind] if other else None

    own = [r for r in records if r["arm"] == arm]
    alike = [r for r in records if kind_of(ARMS[r["arm"]]) == kind_of(ARMS[arm])]
    rest = [] if ARMS[arm].oracle else records
    costs = [cost(own, kind) or cost(alike, kind) or cost(rest, kind) for kind in (0, 1)]
    return costs[0], costs[1]


def kind_of(arm: Arm) -> tuple[bool, bool]:
    """Return what decides most of the time that an arm takes: whether it has a critic, and whether completions in its place."""
    return arm.is_fitted, arm.oracle is not None


def fit_seconds(arms: Sequence[str], records: Sequence[Record], num_seeds: int) -> float:
    """Return the CPU seconds of the fits of critics that are still to be made, as far as one was made: 0 before."""
    made = {(r["arm"] == "pag", r["seed"]): float(r["fit"]["cpu_s"]) for r in records if r["fit"] and is_whole_fit(r["arm"])}
    kinds = {ARMS[arm].recipe == "pag" for arm in arms if is_whole_fit(arm)}
    needed = {(kind, seed) for kind in kinds for seed in (*range(num_seeds), VALIDATION_SEED)} - made.keys()
    return len(needed) * float(np.mean(list(made.values()))) if made else 0.0


def is_whole_fit(arm: str) -> bool:
    """Return whether an arm's critic is fitted until it is fitted."""
    return ARMS[arm].is_fitted and ARMS[arm].fit_steps is None


def todo(arms: Sequence[str], records: Sequence[Record], settings: Settings, num_seeds: int) -> list[Todo]:
    """Return what each arm has still to do."""

    table = of_table(records, choose_rates(records, arms, settings.rates))

    def done(arm: str, seeds: Sequence[int], of: Sequence[Record]) -> int:
        return sum(record["arm"] == arm and record["seed"] in seeds for record in of)

    decide = validated(arms)
    return [
        Todo(
            arm,
            (done(arm, (VALIDATION_SEED,), records), len(settings.rates)) if arm in decide else (0, 0),
            (done(arm, range(num_seeds), table), num_seeds) if arm in arms else (0, 0),
            seconds_of(arm, records, settings),
        )
        for arm in ARMS
        if arm in (*arms, *decide)
    ]


def plan_text(
    arms: Sequence[str], records: Sequence[Record], start: Record, settings: Settings, *, num_seeds: int, workers: int
) -> str:
    """Return the plan in words: trials done and to do, seconds of each, what is left and what was spent."""
    rows = todo(arms, records, settings, num_seeds)
    lines = [f"{'arm':24} {'rates':>6} {'seeds':>6}   CPU seconds of a trial (rates, table)"]
    for row in rows:
        costs = ", ".join("?" if cost is None else f"{cost:.0f}" for cost in row.seconds)
        lines.append(
            f"{row.arm:24} {row.validation[0]:>3}/{row.validation[1]:<2} {row.study[0]:>3}/{row.study[1]:<2}   {costs}"
        )
    num_done = sum(row.validation[0] + row.study[0] for row in rows)
    total = sum(row.validation[1] + row.study[1] for row in rows)
    parts = [row.left_s for row in rows]
    spent = sum(cpu_seconds(records, start).values())
    if None in parts:
        left = "how long the rest takes is known once a trial is done"
    else:
        seconds = sum(part for part in parts if part is not None) + fit_seconds(arms, records, num_seeds)
        left = f"about {seconds:,.0f} CPU seconds are left: {seconds / workers / 60:.0f} minutes with {workers} workers"
    return "\n".join([*lines, f"{num_done} of {total} trials are done, in {spent:,.0f} CPU seconds; {left}"])
