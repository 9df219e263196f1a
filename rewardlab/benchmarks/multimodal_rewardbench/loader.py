"""Multimodal RewardBench (arXiv 2502.14191): about 5,000 pairs about one image each, in eight sub-categories.

The released file leaves the texts of several sources to a download script, and the part on toxicity out altogether.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import reason, whole_json
from rewardlab.benchmarks.media import check_media, embedded_image, read_within
from rewardlab.benchmarks.multimodal_rewardbench.official import sub_category
from rewardlab.data.images import plain_image
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import validate
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair


def _raw(data: Path) -> Iterable[Any]:
    """Return the rows of the released JSON list, or of Parquet one at a time. Raises DataError."""
    if data.suffix == ".parquet" or data.is_dir():
        return rows_of(data)
    raw = whole_json(data, "Multimodal RewardBench as one JSON list")
    if not isinstance(raw, list):
        raise DataError(f"{data}: expected a JSON list of pairs")
    return raw


def load_multimodal_rewardbench(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of ``all_data.json``, or of the Hub's parquet with images inside: ``ID, Text, Image, Output1, Output2,
    Better, Category``. Response 0 is ``Output1``.

    Raise DataError for a malformed or unfilled row, MediaError with the images that are missing.
    """
    rows, folder, paths = list[Row](), images or data.parent, dict[int, str]()
    for number, fields in enumerate(_raw(data)):
        row, image = _row(number, fields, data)
        if isinstance(image, str):
            paths[number] = image
            row = replace(row, media=partial(read_within, folder, image))
        elif with_images:
            row = _seen(row, (plain_image(image["bytes"], where=f"row {number}"),))
        else:  # its bytes stay where they are
            row = replace(row, media=partial(embedded_image, data, "Image", number))
        rows.append(row)
    if not rows:
        raise DataError(f"{data}: holds no pairs")
    if with_images:
        check_media(paths.values(), folder, "Multimodal RewardBench")
        for number, name in paths.items():
            rows[number] = _seen(rows[number], read_within(folder, name))
    return rows


def _seen(row: Row, images: tuple[bytes, ...]) -> Row:
    return replace(row, pair=replace(row.pair, images=images))


def _row(number: int, fields: Any, data: Path) -> tuple[Row, Any]:
    where = f"{data}, row {number}"
    try:
        row_id, question, image = str(fields["ID"]), fields["Text"], fields["Image"]
        answers, preferred = (fields["Output1"], fields["Output2"]), {"Output1": 0, "Output2": 1}[fields["Better"]]
        group = sub_category({"ID": row_id, "Meta": {"Category": fields["Category"]}})
        inside = isinstance(image, Mapping) and isinstance(image.get("bytes"), bytes)
        if not all(isinstance(text, str) for text in (*answers, *([] if inside else [image]))):
            raise TypeError("one of them is not a string")
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{where}: expected ID, Text, Image, Output1, Output2, Better, Category ({reason(error, fields)})"
        ) from error
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{where}: has no Text; fill the released file with the benchmark's 0_download_data.py first")
    pair = PreferencePair(row_id, question, answers, preferred, category=group, source="multimodal_rewardbench")
    validate(pair, where=where)
    medium = hashlib.sha256(image["bytes"]).hexdigest() if inside else image
    return Row(number, pair, group, f"{question}\n{medium}", {"source": row_id.rpartition("-")[0] or row_id}), image
