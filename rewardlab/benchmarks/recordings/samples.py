"""A sample of a recording in another tool's form, and to which row of a benchmark it belongs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.types import Order

Key = tuple[str, ...]


@dataclass(frozen=True)
class RecordedSample:
    """One recorded sample. ``key`` names its pair; ``first`` is the text of the response shown first, None: by ``order``.

    Exactly one of ``text``, ``scores`` (of the responses in the order of the data) and ``right`` is given.
    """

    key: Key
    order: Order = Order.GIVEN
    first: str | None = None
    text: str | None = None
    scores: tuple[float, float] | None = None
    right: bool | None = None


@dataclass(frozen=True)
class Import:
    """Replay rows of a recording: of ``num_samples`` as many as have a row; ``num_rows`` of the benchmark have one."""

    rows: tuple[Mapping[str, Any], ...]
    num_samples: int
    num_unmatched: int
    num_rows: int
    template: str | None


def plain_question(text: str) -> str:
    """Return a question without the place of its image, which copies of one benchmark write differently."""
    return text.replace("<image>\n", "").replace("<image>", "").strip()


def text_key(question: str, responses: Sequence[str]) -> Key:
    """Return the key of a pair by its words, in whatever order the responses stand."""
    return (plain_question(question), *sorted(response.strip() for response in responses))


def rows_by_text(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the rows by :func:`text_key`; several where all words agree."""
    table: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        table[text_key(row.pair.question, row.pair.responses)].append(row)
    return table


def replay_row(row: Row, sample: RecordedSample) -> dict[str, Any]:
    """Return the line of a replay file. Raise ValueError where the response shown first is none of the row's."""
    if sample.right is not None:
        return {"row": row.row, "right": sample.right}
    if sample.scores is not None:
        return {"row": row.row, "scores": list(sample.scores)}
    order = sample.order
    if sample.first is not None:
        stripped = [response.strip() for response in row.pair.responses]
        order = Order.GIVEN if stripped.index(sample.first.strip()) == 0 else Order.SWAPPED
    return {"row": row.row, "order": order.value, "text": sample.text}
