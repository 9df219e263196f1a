"""Votes as Multimodal RewardBench 2's inference writes its predictions, and what its scorer prints on predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.mmrb2.loader import pairs_in, task_files
from rewardlab.benchmarks.mmrb2.official import TASKS, TaskScore, score_task, summary_lines
from rewardlab.errors import ConfigError
from rewardlab.types import Choice, Judgment, Order
from rewardlab.verdicts.votes import in_order


def predictions_of_votes(
    rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int
) -> dict[str, dict[str, list[Any]]]:
    """Return the first vote of each pair in each order; one without a verdict is no judgement."""
    predictions = {}
    for row, judgment in zip(rows, judgments, strict=True):
        orders = {}
        for name, order in (("forward", Order.GIVEN), ("reverse", Order.SWAPPED)):
            votes = in_order(judgment.votes, order)[:1]
            letters = ["A" if vote.verdict.choice is Choice.FIRST else "B" for vote in votes if vote.verdict.choice]
            orders[name] = [{"judgement": letter, "evaluator": "rewardlab", "metadata": {}} for letter in letters]
        predictions[row.pair.pair_id] = orders
    return predictions


def task_lines(rows: Sequence[Row], predictions: Any) -> list[str]:
    """Return what the scorer prints on exported predictions: each task, and a summary of several."""
    tasks: dict[str, list[dict[str, str]]] = {row.group: [] for row in rows}
    for row in rows:
        tasks[row.group].append({"id": row.pair.pair_id, "chosen": "A" if row.pair.preferred == 0 else "B"})
    return _all_lines([score_task(pairs, predictions, TASKS[name]) for name, pairs in tasks.items()])


def lines_of_predictions(predictions: Any, data: Path | None) -> list[str]:
    """Return what the scorer prints on a predictions file and the labels of ``data``. Raise ConfigError without ``data``."""
    if data is None:
        raise ConfigError("mmrb2 is scored against its labels: name the task's benchmark file with --data")
    tasks = task_files(data)  # one task's file, or the folder of all
    return _all_lines([score_task(pairs_in(path), predictions, TASKS[task]) for path, task in tasks])


def _all_lines(scores: Sequence[TaskScore]) -> list[str]:
    """The lines of each task and, as the scorer's ``--task all`` has it, a summary of several."""
    return [line for score in scores for line in score.lines()] + (summary_lines(scores) if len(scores) > 1 else [])
