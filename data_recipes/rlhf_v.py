"""RLHF-V (arXiv 2312.00849): answers and their corrections by people, segment by segment.

``text`` is a JSON text ``{"question", "chosen", "rejected"}``; ``image {bytes, path}, ds_name, origin_dataset, origin_split,
idx, image_path`` beside it. The chosen answer is an edit of the rejected one, so the two are near each other; at least one is
empty. 5,733 rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text, make_pair_or_drop
from rewardlab.types import PreferencePair


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair."""
    text = json.loads(row["text"]) if isinstance(row["text"], str) else row["text"]
    question, better, worse = (clean_text(text[name], name) for name in ("question", "chosen", "rejected"))
    images = source.required_image(row["image"], "image")
    yield make_pair_or_drop(question, better, worse, images, category=row.get("origin_dataset") or "")


RECIPE = Recipe("rlhf_v", "https://huggingface.co/datasets/openbmb/RLHF-V-Dataset", "cc-by-nc-4.0", 5_733, convert)
