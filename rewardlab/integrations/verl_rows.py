"""verl: pairs as rows of the Parquet file that its ``RLHFDataset`` (0.9.1) reads, to train a judge on them.

============  ======================================================================================
data_source   the pair's source, or "rewardlab"; verl's validation metrics go by it
prompt        one user turn of the template, ``<image>`` for each image
images        ``{"bytes": encoded file}`` in the order of their places; none: an empty list
reward_model  ``{"style": "rule", "ground_truth": "first" or "second"}``: the place of the better response
extra_info    index, pair_id, question, order, preferred, and the format that reads the verdict: what
              :mod:`rewardlab.integrations.verl_judge_reward` pays by
============  ======================================================================================

A file has its rows in the order of the set, of a pair its two orders one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rewardlab.data.parquet import TableFile
from rewardlab.errors import DataError
from rewardlab.prompts import Template, build_messages
from rewardlab.prompts.sanitize import MARK
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, choice_of

IMAGE = "<image>"
GROUP_ROWS = 200  # of images, a row group is tens of megabytes
_PLACES = re.compile("<(?=(?:image|video|audio)>)")  # placeholders that verl replaces anywhere in a text
COLUMNS = {
    "data_source": pa.string(),
    "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
    "images": pa.list_(pa.struct({"bytes": pa.binary()})),
    "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
    "extra_info": pa.struct(
        {
            "index": pa.int64(),
            "pair_id": pa.string(),
            "question": pa.string(),
            "order": pa.string(),
            "preferred": pa.int8(),
            "verdict_format": pa.string(),
        }
    ),
}


@dataclass(frozen=True)
class VerlRowCounts:
    """How many rows a file has, and how many pairs were left out because they have no label."""

    num_rows: int
    num_unlabelled: int


def verl_row(pair: PreferencePair, order: Order, template: Template, *, index: int = 0) -> dict[str, Any]:
    """Return the row of a pair in one order. An ``<image>`` (``<video>``, ``<audio>``) that a text itself contains is broken by
    a zero-width space, as in sanitized prompts: verl would look for an image. Raise DataError for a pair without a label."""
    if pair.preferred is None:
        raise DataError(f"{pair.pair_id}: has no 'preferred'; a judge cannot be rewarded on an unlabelled pair")
    messages = build_messages(pair, order=order, template=template)
    return {
        "data_source": pair.source or "rewardlab",
        "prompt": [
            {
                "role": message.role,
                "content": "".join(_PLACES.sub(f"<{MARK}", p.text) if p.image is None else IMAGE for p in message.parts),
            }
            for message in messages
        ],
        "images": [{"bytes": image} for message in messages for image in message.images],
        "reward_model": {"style": "rule", "ground_truth": choice_of(pair.preferred, order).value},
        "extra_info": {
            "index": index,
            "pair_id": pair.pair_id,
            "question": pair.question,
            "order": order.value,
            "preferred": pair.preferred,
            "verdict_format": template.verdict_format,
        },
    }


def write_verl_rows(pairs: Iterable[PreferencePair], path: Path, template: Template, *, both_orders: bool) -> VerlRowCounts:
    """Write the labelled pairs, each in its own order or in both. Raise DataError if none has a label, OutputError."""
    table: TableFile | None = None
    num_rows = num_unlabelled = 0
    for pair in pairs:
        if pair.preferred is None:
            num_unlabelled += 1
            continue
        for order in BOTH_ORDERS if both_orders else (pair.order,):
            table = table or TableFile(path, COLUMNS, group_rows=GROUP_ROWS)
            table.add(verl_row(pair, order, template, index=num_rows))
            num_rows += 1
    if table is None:
        raise DataError(f"{path}: no pair has a label, so there is nothing to write ({num_unlabelled:,} pairs without one)")
    table.close()
    return VerlRowCounts(num_rows, num_unlabelled)
