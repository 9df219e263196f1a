"""VL-RewardBench (arXiv 2411.17451): 1,250 pairs about one image each, in three groups.

Groups go by the source in a row's id, as the official scorer has it. Two wrong groupings circulate: one that is blind to
capital letters' difference (484/448/318) and one that does not know ``hallucination_pair`` (631/301/318).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.data.files import read_lines
from rewardlab.data.images import read_image
from rewardlab.data.pairs import validate
from rewardlab.errors import DataError, MediaError
from rewardlab.types import PreferencePair

# id prefix, lower case -> group; any other prefix is one of the VLFeedback sources and general.
_GROUPS = {
    "hallucination_pair": "hallucination",  # POVID
    "rlaif-v": "hallucination",
    "rlhf-v": "hallucination",
    "mathverse": "reasoning",
    "mmmu_pro": "reasoning",
}


def group_of(row_id: str) -> str:
    """The official group of a row id."""
    lowered = row_id.lower()
    return next((group for prefix, group in _GROUPS.items() if lowered.startswith(prefix)), "general")


class VLRewardBench:
    """Reads the repacked JSON lines: ``id, prompt, chosen, rejected, image``. Response 0 is ``chosen``."""

    name = "vl_rewardbench"
    sizes: Mapping[str, int] = {"general": 183, "hallucination": 749, "reasoning": 318}

    def load(self, data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
        """Raises DataError for a malformed row, MediaError with the list of missing images."""
        if not data.is_file():
            raise DataError(f"{data}: no such file; expected VL-RewardBench as JSON lines")
        rows = [self._row(n, line, data) for n, line in enumerate(read_lines(data))]
        if not rows:
            raise DataError(f"{data}: holds no rows")
        if not with_images:
            return [row for row, _ in rows]
        folder = images or data.parent
        missing = [name for _, name in rows if not (folder / name).is_file()]
        if missing:
            raise MediaError(
                f"{len(missing)} of {len(rows)} images are not in {folder}, the first {missing[0]!r}; download the images of "
                "VL-RewardBench and name the folder that holds them with --images"
            )
        return [_with_image(row, folder / name) for row, name in rows]

    def _row(self, number: int, line: str, data: Path) -> tuple[Row, str]:
        try:
            fields = json.loads(line)
            row_id, question = str(fields["id"]), fields["prompt"]
            responses, image = (fields["chosen"], fields["rejected"]), fields["image"]
            if not all(isinstance(text, str) for text in (question, *responses, image)):
                raise TypeError("one of them is no text")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{data}, row {number}: expected a JSON object with id, prompt, chosen, rejected, image ({error!r})"
            ) from error
        group = group_of(row_id)
        pair = PreferencePair(row_id, question, responses, 0, category=group, source="vl_rewardbench")
        validate(pair, where=f"{data}, row {number}")
        return Row(number, pair, group, f"{question}\n{image}", {"source": row_id.rsplit("-", 1)[0]}), image


def _with_image(row: Row, path: Path) -> Row:
    return replace(row, pair=replace(row.pair, images=(read_image(path),)))
