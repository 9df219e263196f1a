"""MM-RLHF-RewardBench's scorer, and R1-Reward's copy of it: Acc over pairs, Acc+ over ids of which every pair is right.

Made for scalar rewards: no order, no parser. Quirks, kept because published numbers have them:

- *Categories by path.* The first of mcq, long, short, safety, video that is a part of the image's or video's path; a path with
  none is in the overall figures only.
- *Two ways to count ids.* An id that is right as a whole counts for the first category found in any of its paths, but the
  number of ids of a category is of those with the word in any path: where a path holds two of the words, Acc+ is too low.
- *Two digits.* Acc is printed as 0.72 where 71.76 % is meant.

- *Undivided*: a category that no row is counted in keeps its numbers of hits, which are above 0 where an image's path has no
  word and a video's beside it has.

Equal rewards are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.types import Judgment
from rewardlab.verdicts.votes import share_of_valid

CATEGORIES = ("mcq", "long", "short", "safety", "video")


def _paths(row: Mapping[str, Any]) -> tuple[str, str]:
    return row.get("image", ""), row.get("video", "")


def path_category(row: Mapping[str, Any]) -> str | None:
    image, video = _paths(row)
    return next((word for word in CATEGORIES if word in (image or video)), None)


def score_rewards(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """``accuracy`` and ``acc_plus`` (0..1) and ``total`` of each category and of ``overall``.

    A row: ``id``, ``image`` or ``video``, ``rewards`` of the chosen and the rejected answer.
    """
    by_id: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row.get("id", ""), []).append(row)
    right = {id(row): row["rewards"][0] > row["rewards"][1] for row in rows}
    all_right = [group for group in by_id.values() if all(right[id(row)] for row in group)]
    table = {}
    for word in CATEGORIES:
        total = sum(path_category(row) == word for row in rows)
        hits = sum(right[id(row)] for row in rows if _first(row) == word)
        plus = sum(_first_of(group) == word for group in all_right)
        ids = sum(any(word in image + video for image, video in map(_paths, group)) for group in by_id.values())
        table[word] = {"accuracy": hits / total, "acc_plus": plus / ids} if total else {"accuracy": hits, "acc_plus": plus}
        table[word]["total"] = total
    overall = {"accuracy": sum(right.values()) / len(rows), "acc_plus": len(all_right) / len(by_id)} if rows else {}
    return {**table, "overall": {"accuracy": 0, "acc_plus": 0, **overall, "total": len(rows)}}


def _first(row: Mapping[str, Any]) -> str | None:
    """The first word that is in either path."""
    image, video = _paths(row)
    return next((word for word in CATEGORIES if word in image or word in video), None)


def _first_of(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The first word that is in any path of an id."""
    return next((word for word in CATEGORIES if any(word in path for row in rows for path in _paths(row))), None)


def reward_lines(table: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines that the scorer prints."""
    lines = ["", "Category-wise Metrics:"]
    for word in CATEGORIES:
        cell = table[word]
        lines += [f"Category: {word}", f"  Accuracy: {cell['accuracy']:.2f}", f"  ACC+: {cell['acc_plus']:.2f}"]
        lines.append(f"  Total: {cell['total']}")
    cell = table["overall"]
    lines += ["", "Overall Metrics:", f"Overall Accuracy: {cell['accuracy']:.2f}", f"Overall ACC+: {cell['acc_plus']:.2f}"]
    return [*lines, f"Total Items: {cell['total']}"]


def rewards_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the share of votes for each answer, both orders weighing the same, in place of a scalar model's rewards."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        share = share_of_valid(judgment.votes)
        rewards = [0.0, 0.0] if share is None else [share, 1 - share]
        records.append({"id": row.cluster, row.slices["medium"]: row.medium, "rewards": rewards})
    return records
