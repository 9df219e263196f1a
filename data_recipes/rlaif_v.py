"""RLAIF-V (arXiv 2405.17220): pairs of model answers, split into claims that an open model checked.

``ds_name, image {bytes, path}, question, chosen, rejected, origin_dataset, origin_split, idx, image_path``. No ties. Several
pairs share an image and a question; ``idx`` is no unique key. 83,132 rows by the card; R1-Reward used 74,802 of an earlier
state. 233 rows of VL-RewardBench come from here: decontaminate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text, make_pair_or_drop
from rewardlab.types import PreferencePair


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair."""
    question, better, worse = (clean_text(row[name], name) for name in ("question", "chosen", "rejected"))
    images = source.required_image(row["image"], "image")
    yield make_pair_or_drop(question, better, worse, images, category=row.get("origin_dataset") or "")


RECIPE = Recipe("rlaif_v", "https://huggingface.co/datasets/openbmb/RLAIF-V-Dataset", "cc-by-nc-4.0", 83_132, convert)
