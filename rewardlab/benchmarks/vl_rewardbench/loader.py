"""VL-RewardBench (arXiv 2411.17451): 1,250 pairs about one image each, in three groups.

Groups go by the source in a row's id, as the official scorer has it. Two wrong groupings circulate: one that is blind to
capital letters' difference (484/448/318) and one that does not know ``hallucination_pair`` (631/301/318).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import json_rows, reason
from rewardlab.benchmarks.media import check_media, embedded_image, read_within
from rewardlab.data.images import plain_image, read_image
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import validate
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

# id prefix, lower case -> group; any other prefix is one of the VLFeedback sources and general.
_GROUPS = {
    "hallucination_pair": "hallucination",  # POVID
    "rlaif-v": "hallucination",
    "rlhf-v": "hallucination",
    "mathverse": "reasoning",
    "mmmu_pro": "reasoning",
}


_OTHERS = ("wildvision", "jailbreak", "lrvinstruction", "politics", "svit")  # prefixes of general ids in the released file


def is_vl_rewardbench_row(fields: Mapping[str, Any]) -> bool:
    """Return whether a row is of this benchmark, by the source in its id."""
    return str(fields.get("id", "")).lower().startswith((*_GROUPS, *_OTHERS))


def official_group(row_id: str) -> str:
    """Return the official group of a row id."""
    lowered = row_id.lower()
    return next((group for prefix, group in _GROUPS.items() if lowered.startswith(prefix)), "general")


GROUPINGS: dict[str, Mapping[str, int]] = {
    "official": {"general": 183, "hallucination": 749, "reasoning": 318},
    "blind to capitals' difference (R1-Reward)": {"general": 484, "hallucination": 448, "reasoning": 318},
    "POVID as general (UnifiedReward)": {"general": 631, "hallucination": 301, "reasoning": 318},
}


def load_vl_rewardbench(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of the Hub's parquet (``id, query, response[2], human_ranking[2], image``), whose images are inside, or
    of JSON lines: the repacked ones (``id, prompt, chosen, rejected, image``), in which response 0 is ``chosen``, or the
    dataset's own (the Hub's columns, and ``image_path``).

    Raise DataError for a malformed row, MediaError with the list of missing images.
    """
    if not data.exists():
        raise DataError(f"{data}: no such file; expected VL-RewardBench as JSON lines or the Hub's parquet")
    if data.suffix == ".parquet" or data.is_dir():
        hub_rows = [_hub_row(n, fields, f"{data}, row {n}", with_images) for n, fields in enumerate(rows_of(data))]
        if not hub_rows:
            raise DataError(f"{data}: holds no rows")
        if with_images:
            return hub_rows
        return [replace(row, media=partial(embedded_image, data, "image", row.row)) for row in hub_rows]
    rows = [_row(n, fields, where) for n, (fields, where) in enumerate(json_rows(data, "VL-RewardBench as JSON lines"))]
    folder = images or data.parent
    if not with_images:
        return [replace(row, media=partial(read_within, folder, name)) for row, name in rows]
    check_media((name for _, name in rows), folder, "VL-RewardBench")
    return [_with_image(row, folder / name) for row, name in rows]


def _row(number: int, fields: Mapping[str, Any], where: str) -> tuple[Row, str]:
    """A row of the repack, or of the dataset's own JSON lines, which have the Hub's columns and the path of the image."""
    try:
        row_id, preferred = str(fields["id"]), 0
        if "human_ranking" in fields:
            question, image = fields["query"].replace("<image>\n", ""), fields["image_path"]
            (first, second), preferred = fields["response"], _better(fields["human_ranking"])
            responses = (first, second)
        else:
            question, responses, image = fields["prompt"], (fields["chosen"], fields["rejected"]), fields["image"]
        if not all(isinstance(text, str) for text in (question, *responses, image)):
            raise TypeError("one of them is not a string")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: expected a JSON object with id, prompt, chosen, rejected, image, or with id, query, response[2], "
            f"human_ranking[2], image_path ({reason(error, fields)})"
        ) from error
    group = official_group(row_id)
    pair = PreferencePair(row_id, question, responses, preferred, category=group, source="vl_rewardbench")
    validate(pair, where=where)
    return Row(number, pair, group, f"{question}\n{image}", {"source": row_id.rsplit("-", 1)[0]}), image


def _better(human_ranking: Any) -> int:
    """Return the response of rank 0. Raise ValueError for other ranks than 0 and 1."""
    ranking = list(human_ranking)
    if sorted(ranking) != [0, 1]:
        raise ValueError(f"human_ranking is {ranking}, expected 0 for the better and 1 for the other")
    return ranking.index(0)


def _hub_row(number: int, fields: Mapping[str, Any], where: str, with_images: bool) -> Row:
    try:
        row_id, question = str(fields["id"]), fields["query"].replace("<image>\n", "")
        preferred = _better(fields["human_ranking"])
        first, second = fields["response"]
        image = fields["image"]["bytes"]
        medium = hashlib.sha256(image).hexdigest()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: expected id, query, response[2], human_ranking[2] and image with bytes ({reason(error, fields)})"
        ) from error
    group, images = official_group(row_id), (plain_image(image, where=where),) if with_images else ()
    pair = PreferencePair(row_id, question, (first, second), preferred, images, group, "vl_rewardbench")
    validate(pair, where=where)
    return Row(number, pair, group, f"{question}\n{medium}", {"source": row_id.rsplit("-", 1)[0]})


def _with_image(row: Row, path: Path) -> Row:
    return replace(row, pair=replace(row.pair, images=(read_image(path),)))
