"""Questions with two or more responses to choose from, as JSON lines or Parquet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from rewardlab.data.columns import CANDIDATE_COLUMNS, AllowedColumns
from rewardlab.data.media import Files
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import candidates_from_row
from rewardlab.errors import DataError
from rewardlab.types import Candidates


def read_candidates(path: Path, *, images: Path | None = None, allow_columns: Collection[str] = ()) -> list[Candidates]:
    """Return all rows of a file: ``question, responses``, and optionally ``images, criteria, best`` (index of the best
    one, or a list of equally good ones), ``group, id``; or as RewardBench 2 has them, ``prompt, chosen, rejected, subset``, the
    right ones first.

    ``allow_columns`` as :func:`rewardlab.data.pairs.validate_rows` takes them. Raises DataError or MediaError for the first bad
    row, and for a file without rows.
    """
    folder, columns = images or path.parent, AllowedColumns.of(allow_columns)
    with closing(rows_of(path)) as rows:
        candidates = [_candidates(row, n, folder, f"{path}, row {n}", columns) for n, row in enumerate(rows)]
    if not candidates:
        raise DataError(f"{path}: holds no rows")
    return candidates


def _candidates(row: Mapping[str, Any], number: int, folder: Path, where: str, columns: AllowedColumns) -> Candidates:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with question and responses, got {row!r:.80}")
    columns.check(row, where, CANDIDATE_COLUMNS)
    try:
        lists = [row[name] for name in (("chosen", "rejected") if "chosen" in row else ("responses",))]
        if not all(isinstance(texts, list | tuple) for texts in lists):
            raise TypeError("expected a list of strings, got a single string or nothing")
        if "chosen" in row:
            right, wrong = list(row["chosen"]), list(row["rejected"])
            responses, best = (*right, *wrong), tuple(range(len(right)))
        else:
            responses, best = tuple(row["responses"]), _best(row.get("best"))
        question = row["question"] if "question" in row else row["prompt"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{where}: expected question and responses, or prompt, chosen and rejected ({error!r})") from error
    if len(responses) < 2:
        raise DataError(f"{where}: has {len(responses)} responses; expected two or more to choose from")
    if not all(0 <= n < len(responses) for n in best):
        raise DataError(f"{where}: best is {list(best)}; expected indices from 0 to {len(responses) - 1}")
    named, files = str(row.get("id", number)), Files(folder)
    read = candidates_from_row(
        {**row, "question": question}, responses, prompt_id=named, files=files, where=where, answers_quote=True
    )
    return replace(read, best=best, group=str(row.get("group") or row.get("subset") or "all"))


def _best(value: Any) -> tuple[int, ...]:
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in values):
        raise TypeError(f"best is {value!r}, expected an index or a list of indices")
    return tuple(values)


def candidates_hash(prompts: Sequence[Candidates]) -> str:
    """Return 16 hex digits of the questions, responses and images of all prompts, in their order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        all_images = (*prompt.images, *(image for images in prompt.response_images for image in images))
        images = [hashlib.sha256(image).hexdigest() for image in all_images]
        criteria = [[astuple(criterion) for criterion in prompt.criteria]] if prompt.criteria else []
        digest.update(json.dumps([prompt.question, *prompt.responses, images, *criteria]).encode())
    return digest.hexdigest()[:16]
