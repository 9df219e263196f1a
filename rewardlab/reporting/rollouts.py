"""The rollouts that a run's page shows: some steps, a few rollouts of each, by the pair that they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_STEPS = 40  # evenly spread, the first and the last among them
MOST_PER_STEP = 8
MOST_CHARACTERS = 4000  # of a text

Record = Mapping[str, Any]


@dataclass(frozen=True)
class ShownPair:
    """What a rollout answers, to look at: ``images`` and ``response_images`` are numbers of :attr:`PairsOfRun.pictures`,
    ``left_out`` counts further images; ``preferred`` is the index of the better response, None where it is not known."""

    question: str
    responses: tuple[str, str]
    preferred: int | None
    images: tuple[int, ...]
    response_images: tuple[tuple[int, ...], tuple[int, ...]]
    left_out: int


@dataclass(frozen=True)
class PairsOfRun:
    """Pairs by ``pair_id``; ``pictures`` are data URLs, each once however often it is shown; ``note`` says why some or all
    pairs are missing, "" where none is."""

    by_id: Mapping[str, ShownPair] = field(default_factory=dict)
    pictures: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class StepRollouts:
    """The rollouts of a step by their ``pair_id``, at most :data:`MOST_PER_STEP` of ``count``; ``reward`` is the mean of those
    that have one, None without any."""

    step: int
    by_pair: Mapping[str, Sequence[Record]]
    count: int
    reward: float | None


def steps_to_show(steps: Iterable[int]) -> list[int]:
    """Return at most :data:`MOST_STEPS` of these steps, each once, in their order."""
    known = sorted(set(steps))
    if len(known) <= MOST_STEPS:
        return known
    return [known[round(n * (len(known) - 1) / (MOST_STEPS - 1))] for n in range(MOST_STEPS)]


def rollouts_by_step(samples: Iterable[Record]) -> list[StepRollouts]:
    """Return the rollouts that are shown."""
    by_step: dict[int, list[Record]] = {}
    for row in samples:
        by_step.setdefault(row["step"], []).append(row)
    return [_of_step(step, by_step[step]) for step in steps_to_show(by_step)]


def newest_ids(rollouts: Sequence[StepRollouts]) -> list[str]:
    """Return the ids of the pairs that rollouts answer, each once, those of the last steps first."""
    return list(dict.fromkeys(pair_id for step in reversed(rollouts) for pair_id in step.by_pair if pair_id))


def _of_step(step: int, rows: Sequence[Record]) -> StepRollouts:
    by_pair: dict[str, list[Record]] = {}
    for row in rows[:MOST_PER_STEP]:
        by_pair.setdefault(str(row.get("pair_id", "")), []).append(row)
    rewards = [row["reward"] for row in rows[:MOST_PER_STEP] if isinstance(row.get("reward"), int | float)]
    return StepRollouts(step, by_pair, len(rows), sum(rewards) / len(rewards) if rewards else None)


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text without what is beyond ``most`` characters, of which it says how many these are."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
