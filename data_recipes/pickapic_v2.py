"""Pick-a-Pic v2 (arXiv 2305.01569): users' choices between two images that models made of their text.

By its card: ``caption``, the images' bytes ``jpg_0`` and ``jpg_1``, ``label_0`` and ``label_1`` (1 and 0; a half each: a tie),
``has_label``. Dropped: rows without a label. Guessed: nothing. 1,001,352 rows, texts of all kinds that users wrote among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.config.data import MappingConfig
from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, recipe_of
from rewardlab.types import PreferencePair

_PAIRS = recipe_of(
    MappingConfig(name="pickapic_v2", question="caption", responses=["jpg_0", "jpg_1"], scores=["label_0", "label_1"])
).convert


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair."""
    if row.get("has_label") is False:
        yield Dropped("no label")
    else:
        yield from _PAIRS(row, source)


RECIPE = Recipe("pickapic_v2", "https://huggingface.co/datasets/yuvalkirstain/pickapic_v2", "", None, convert)
