"""Files of a policy's answers: logs with their rewards, and lines to be filled in with whether they are right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewardlab.curation.policy_negatives import PaidAnswer
from rewardlab.data.files import write_atomic
from rewardlab.data.row_files import lines_of
from rewardlab.errors import DataError
from rewardlab.rewards.pairwise import without_thinking
from rewardlab.rewards.verified import Rightness
from rewardlab.types import PreferencePair

TO_LABEL = "to_label.jsonl"
REWARD, RIGHT = "reward (0 to 1, or null)", "right (true, false or null)"


def logged_answers(path: Path) -> Iterator[PaidAnswer]:
    """Yield the answers of a log: lines with ``pair_id``, ``answer`` (or ``text``) and ``reward``, as in ``samples.jsonl`` of
    `rewardlab policy`; null is the reward of an answer that the judge could not compare. Raise DataError for another line, and
    for a reward outside 0 to 1."""
    for number, row in _rows_of(path, "reward", REWARD):
        reward = row["reward"]
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1):
            raise DataError(
                f"{path}, line {number}: the reward is {_in_short(reward)}; expected a number from 0 to 1, the probability "
                "of beating the preferred response, or null. A policy whose `phi` is "
                "not probability, and one under a scalar judge, "
                "log on another scale: convert these rewards, or sample answers anew with --policy and --judge"
            )
        answer = without_thinking(row.get("answer", row.get("text")))
        yield PaidAnswer(row["pair_id"], answer, None if reward is None else float(reward))


def by_labels(path: Path) -> Rightness:
    """Return the labels of a filled-in file: lines with ``pair_id``, ``answer`` and ``right``. Other answers, and those whose
    ``right`` is null, are unknown. Raise DataError for another line, and for one that contradicts another."""
    known = {name: row["right"] for name, row in _labels_of(path).items()}
    return lambda pair, answer: known.get((pair.pair_id, answer))


def label_row(paid: PaidAnswer, pair: PreferencePair) -> dict[str, Any]:
    """Return the line of an answer, to be filled in."""
    return {**asdict(paid), "question": pair.question, "preferred": pair.responses[pair.preferred or 0], "right": None}


def write_labels(rows: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Write the lines of :func:`label_row`; return how many lack a label. Labels that are filled in at ``path`` stay, also
    those of answers that are not among ``rows``. Raise DataError, and keep the file, if one of its lines cannot be read."""
    new = {(row["pair_id"], row["answer"]): row for row in rows}
    lines = dict[tuple[str, str], Mapping[str, Any]]()
    for name, row in (_labels_of(path) if path.is_file() else {}).items():
        if name in new or row["right"] is not None:
            lines[name] = {**row, **new.get(name, {}), "right": row["right"]}
    lines = {**lines, **{name: row for name, row in new.items() if name not in lines}}
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines.values()))
    return sum(row["right"] is None for row in lines.values())


def _labels_of(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the lines of a filled-in file by pair and answer; the last one with a label if there are several."""
    rows = dict[tuple[str, str], tuple[int, Mapping[str, Any]]]()
    for number, row in _rows_of(path, "right", RIGHT):
        right, name = row["right"], (row["pair_id"], row.get("answer", row.get("text")))
        if right is not None and not isinstance(right, bool):
            raise DataError(f"{path}, line {number}: expected {RIGHT}, got {_in_short(right)}")
        line, before = rows.get(name, (number, row))
        if None not in (right, before["right"]) and right != before["right"]:
            raise DataError(
                f"{path}, line {number}: right is {_in_short(right)}, and {_in_short(before['right'])} of the same answer in "
                f"line {line}; expected one label per answer: delete the wrong line"
            )
        if name not in rows or right is not None:
            rows[name] = (number, row)
    return {name: row for name, (_, row) in rows.items()}


def _rows_of(path: Path, field: str, expected: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, object) of lines with a ``pair_id``, an ``answer`` (or ``text``) and a ``field``, described by
    ``expected``. Raise DataError for another line."""
    for number, row in lines_of(path):
        if isinstance(row, DataError):
            raise row
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with pair_id, answer (or text) and {expected}, got {_in_short(row)}")
        texts = (row.get("pair_id"), row.get("answer", row.get("text")))
        if not all(isinstance(text, str) for text in texts) or field not in row:
            kinds = ", ".join(f"{name} ({type(value).__name__})" for name, value in sorted(row.items())) or "nothing"
            raise DataError(f"{where}: expected pair_id, answer (or text), both texts, and {expected}, got {kinds}")
        try:
            "".join(map(str, texts)).encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where}: a text contains half a surrogate pair, which is not a valid character and "
                "cannot be stored; clean it up, or delete the line"
            ) from None
        yield number, row


def _in_short(value: Any) -> str:
    """Return a value as JSON, in 40 characters at most."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
