"""Statistics of rollouts as NeMo-Gym's agents ask for them after a run: by task and over all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rewardlab.errors import DataError
from rewardlab.serving.schemas import JsonObject

TASK_INDEX, ROLLOUT_INDEX = "_ng_task_index", "_ng_rollout_index"
MAX_NUMBER = 1e150  # integers of JSON may be larger than any float; these are nobody's metrics, and their squares are infinite
MOST_NAMES = 1000  # of numbers; each is described five times for each task


def aggregate_metrics(rollouts: Sequence[JsonObject]) -> JsonObject:
    """Return ``group_level_metrics`` (for each task in the order of its index), ``agent_metrics`` (over all rollouts) and
    ``key_metrics`` (the means of the latter). Every number of a rollout and of its response's usage is described by
    ``mean/NAME``, ``max/``, ``min/``, ``median/`` and ``std/`` (of a sample; 0 for one). A rollout without a task is of 0.

    Raises DataError for numbers of more than :data:`MOST_NAMES` names."""
    tasks: dict[int | str, list[dict[str, float]]] = {}
    for rollout in rollouts:
        index = rollout.get(TASK_INDEX)
        tasks.setdefault(index if isinstance(index, int | str) else 0, []).append(_numbers(rollout))
    overall = _described([numbers for group in tasks.values() for numbers in group])
    return {
        "group_level_metrics": [{TASK_INDEX: index, **_described(tasks[index])} for index in sorted(tasks, key=_place)],
        "agent_metrics": overall,
        "key_metrics": {name: value for name, value in overall.items() if name.startswith("mean/")},
    }


def _place(index: int | str) -> tuple[bool, int, str]:
    """Return what indices are sorted by: numbers, also those that are sent as texts, and then other texts."""
    is_number = isinstance(index, int) or (index.isdecimal() and len(index) < 20)
    return not is_number, int(index) if is_number else 0, str(index)


def _numbers(rollout: JsonObject) -> dict[str, float]:
    response = rollout.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    items = {**rollout, **(usage if isinstance(usage, Mapping) else {})}.items()
    return {
        name: float(value)
        for name, value in items
        if isinstance(value, int | float) and name not in (TASK_INDEX, ROLLOUT_INDEX) and abs(value) < MAX_NUMBER
    }


def _described(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for row in rows:  # once, whatever the number of names
        for name, value in row.items():
            by_name.setdefault(name, []).append(value)
    if len(by_name) > MOST_NAMES:
        raise DataError(f"the rollouts have numbers of {len(by_name):,} names; expected at most {MOST_NAMES:,}: leave some out")
    metrics: dict[str, float] = {}
    for name, values in by_name.items():
        mean = statistics.fmean(values)
        metrics |= {
            f"mean/{name}": mean,
            f"max/{name}": max(values),
            f"min/{name}": min(values),
            f"median/{name}": statistics.median(values),
            f"std/{name}": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)),
        }
    return metrics
