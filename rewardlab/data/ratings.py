"""Ratings of single people: what a line of ``labels.jsonl`` holds, and the label that several people's choices come to.

One line a rating::

    {"pair_id": "p1", "rater": "ann", "choice": 0, "shown": "swapped", "at": "2026-11-27T10:00:00+00:00", "reason": ""}

``choice`` is 0 or 1, the index of the better response in the file (not as shown), "tie", "both_bad" or "skip" (cannot tell).
``shown`` is the order in which the responses were shown: "given" (response 0 first), "swapped" or "". Only ``pair_id``,
``rater`` and ``choice`` are required. A rater's further lines on one pair are repetitions: the first is the rating.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.files import has_lone_surrogate, write_atomic
from rewardlab.data.row_files import lines_of
from rewardlab.errors import DataError
from rewardlab.types import Order, Rating, Tie

RATING_FIELDS = ("rater", "choice", "shown", "at", "reason")
SKIP = "skip"
UNNAMED = "#"  # begins the name of a rater of whom only the vote is known, not which votes of other pairs are theirs
_CHOICES: dict[str, int | Tie | None] = {
    "0": 0,
    "1": 1,
    "0.0": 0,
    "1.0": 1,
    Tie.TIE.value: Tie.TIE,
    Tie.BOTH_BAD.value: Tie.BOTH_BAD,
    SKIP: None,
}

_TIES = re.compile(r"(?:it'?s )?(?:a )?(?:tie|tied|draw|equal|same|neither|both|both (?:are )?good|no preference)(?: vote)?")
_BOTH_BAD = re.compile(r"(?:tie )?(?:both (?:are )?|all )(?:bad|wrong|poor)(?: vote)?")


def tie_of(label: str | None) -> Tie | None:
    """Return the tie that a label names in one of the usual spellings: "tie (bothbad)", "bothbad_vote", "tievote"."""
    words = " ".join(re.sub(r"(both|tie|bad)(?=vote|bad|good)", r"\1 ", re.sub(r"[\W_]+", " ", (label or "").lower())).split())
    if _BOTH_BAD.fullmatch(words):
        return Tie.BOTH_BAD
    return Tie.TIE if _TIES.fullmatch(words) else None


def rating_of(value: Any, where: str) -> Rating:
    """Return the rating of a record with :data:`RATING_FIELDS`. Raise DataError, beginning with ``where``."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected an object with rater and choice, got {value!r:.60}")
    if unknown := sorted(map(str, value.keys() - {*RATING_FIELDS})):
        raise DataError(f"{where}: unknown field {unknown[0]!r}; expected {', '.join(RATING_FIELDS)}")
    choice, rater, texts = value.get("choice"), value.get("rater"), [value.get(name) or "" for name in RATING_FIELDS[2:]]
    if not isinstance(rater, str | int) or isinstance(rater, bool) or str(rater).strip() == "":
        raise DataError(f"{where}: 'rater' is {rater!r:.60}; expected a name")
    if isinstance(choice, bool) or (key := str(choice).strip().lower()) not in _CHOICES:
        raise DataError(f"{where}: 'choice' is {choice!r:.60}; expected 0, 1, tie, both_bad or skip")
    if not all(isinstance(text, str) for text in texts) or texts[0] not in ("", *Order):
        raise DataError(
            f"{where}: 'shown' is {value.get('shown')!r:.40}; expected given or swapped, and texts for at and reason"
        )
    if has_lone_surrogate("".join([str(rater), *texts])):
        raise DataError(f"{where}: contains half a surrogate pair, which is not a valid character; clean it up")
    order, at, reason = texts
    return Rating(str(rater), _CHOICES[key], Order(order) if order else None, at, reason)


def rating_record(rating: Rating) -> dict[str, str]:
    """Return the record of a rating, all values texts (of one type in a Parquet column)."""
    choice = SKIP if rating.choice is None else str(rating.choice)
    return dict(zip(RATING_FIELDS, (rating.rater, choice, rating.order or "", rating.at, rating.reason), strict=True))


def read_labels(path: Path) -> dict[str, tuple[Rating, ...]]:
    """Return the ratings of a file of JSON lines by ``pair_id``, in the order of the file. Raise DataError, naming the line."""
    ratings: dict[str, list[Rating]] = {}
    for number, row in lines_of(path):
        where = f"{path}, line {number}"
        if isinstance(row, DataError):
            raise row
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: expected an object with pair_id, rater and choice, got {row!r:.60}")
        pair_id = row.get("pair_id")
        if not isinstance(pair_id, str | int) or isinstance(pair_id, bool) or str(pair_id) == "":
            raise DataError(f"{where}: 'pair_id' is {pair_id!r:.60}; expected the id of a pair")
        rating = rating_of({name: value for name, value in row.items() if name != "pair_id"}, where)
        ratings.setdefault(str(pair_id), []).append(rating)
    if not ratings:
        raise DataError(f"{path}: has no ratings; expected JSON lines with pair_id, rater and choice")
    return {pair_id: tuple(of_pair) for pair_id, of_pair in ratings.items()}


def write_ratings(path: Path, ratings: Iterable[tuple[str, Rating]]) -> None:
    """Write (pair_id, rating) as JSON lines. Raises OutputError."""
    lines = []
    for pair_id, rating in ratings:
        record: dict[str, Any] = {"pair_id": pair_id, **rating_record(rating)}
        if isinstance(rating.choice, int):
            record["choice"] = rating.choice
        lines.append(json.dumps({name: value for name, value in record.items() if value != ""}, ensure_ascii=False) + "\n")
    write_atomic(path, "".join(lines))


def first_ratings(ratings: Iterable[Rating]) -> tuple[Rating, ...]:
    """Return each rater's first rating of a pair."""
    firsts: dict[str, Rating] = {}
    for rating in ratings:
        firsts.setdefault(rating.rater, rating)
    return tuple(firsts.values())


@dataclass(frozen=True)
class PeoplesLabel:
    """The label of a pair by people's ratings: ``choice`` has more of the ratings than any other (a tie where two have as many;
    None without a rating), ``agreement`` is its fraction (0..1) of ``num`` ratings, skipped ones left out."""

    choice: int | Tie | None
    agreement: float
    num: int


def peoples_label(ratings: Sequence[Rating]) -> PeoplesLabel:
    """Return the plurality label of a pair's ratings, the first of each rater."""
    choices = [rating.choice for rating in first_ratings(ratings) if rating.choice is not None]
    counts = Counter(Tie.TIE if isinstance(choice, Tie) else choice for choice in choices)
    if not choices:
        return PeoplesLabel(None, 0.0, 0)
    (choice, most), *others = counts.most_common(2)
    if choice is Tie.TIE or (others and others[0][1] == most):
        choice = Tie.BOTH_BAD if 2 * choices.count(Tie.BOTH_BAD) > counts[Tie.TIE] else Tie.TIE
    return PeoplesLabel(choice, most / len(choices), len(choices))
