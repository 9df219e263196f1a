"""Multimodal RewardBench 2's ``compute_accuracy.py``: both orders of every pair, each a trial of its own.

Quirks, kept because published numbers have them:

- *Missing trials shrink the denominator.* A pair without a prediction, an order without one, and a first judgement that is
  empty are left out: a judge that fails on the hard pairs gains by it.
- *Any other word is wrong.* "tie" or "A better" is a trial that was not won.
- *One judgement.* Of several per order only the first counts; there is no vote.

Its overall figure is over the trials of all tasks, not the mean of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.mmrb2.loader import pairs_in, task_files
from rewardlab.errors import ConfigError
from rewardlab.types import Choice, Judgment, Order
from rewardlab.verdicts.votes import in_order

_FLIPPED = {"A": "B", "B": "A"}
TASKS = {"t2i": "task1_image", "edit": "task2_edit", "interleaved": "task3_interleaved", "reasoning": "task4_reasoning"}


@dataclass(frozen=True)
class TaskScore:
    """``correct`` of ``trials``; pairs in the benchmark, with and without a prediction."""

    task: str
    pairs: int
    missing: int
    correct: int
    trials: int

    @property
    def accuracy(self) -> float:
        """0 where there is no trial, as there."""
        return self.correct / self.trials if self.trials else 0.0

    def lines(self) -> list[str]:
        """Return the lines that the scorer prints of one task."""
        rule = "=" * 50
        lines = ["", rule, f"Task: {self.task}", rule, f"Total pairs: {self.pairs}"]
        lines += [f"Evaluated: {self.pairs - self.missing}", f"Missing: {self.missing}"]
        return [*lines, f"Accuracy: {self.accuracy:.4f} ({self.accuracy * 100:.2f}%)", rule]


def score_task(pairs: Sequence[Mapping[str, Any]], predictions: Mapping[str, Any], task: str) -> TaskScore:
    """``pairs`` are those of the benchmark file (``id``, ``chosen``), ``predictions[id]`` has lists ``forward`` and ``reverse``
    of objects with ``judgement``."""
    missing = correct = trials = 0
    for pair in pairs:
        if pair["id"] not in predictions:
            missing += 1
            continue
        orders = predictions[pair["id"]]
        for order in ("forward", "reverse"):
            letter = orders[order][0].get("judgement") if orders.get(order) else None
            if letter:
                trials += 1
                correct += (_FLIPPED.get(letter, letter) if order == "reverse" else letter) == pair["chosen"]
    return TaskScore(task, len(pairs), missing, correct, trials)


def overall(scores: Sequence[TaskScore]) -> float:
    """Over the trials of all tasks, 0..1."""
    trials = sum(score.trials for score in scores)
    return sum(score.correct for score in scores) / trials if trials else 0.0


def summary_lines(scores: Sequence[TaskScore]) -> list[str]:
    """Return the lines with which the scorer sums up several tasks."""
    double, single = "=" * 50, "-" * 50
    lines = ["", double, "SUMMARY", double, f"{'Task':<25} {'Accuracy':<12} Missing", single]
    lines += [f"{score.task:<25} {score.accuracy * 100:>6.2f}%      {score.missing}" for score in scores]
    return [*lines, single, f"{'Overall':<25} {overall(scores) * 100:>6.2f}%", double]


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
