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
from typing import Any

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
