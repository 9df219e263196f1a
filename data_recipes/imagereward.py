"""ImageRewardDB (arXiv 2304.05977): experts' rankings of images that models made of one text.

From third-party loaders: ``metadata-*.parquet`` has a row for each image, ``image_path, prompt_id, prompt, classification,
rank`` (1 is the best) and ratings; paths start at the folder of the file, where the archives of ``images/`` are unpacked.
Guessed: nothing. 137 thousand pairs by the paper, of 8,878 prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.config.data import MappingConfig
from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, recipe_of
from rewardlab.types import PreferencePair

_PAIRS = recipe_of(
    MappingConfig(name="imagereward", question="prompt", responses=["images"], ranks=["ranks"], category="classification")
).convert


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield every two images of a prompt; equal ranks are ties."""
    rows = row["rows"]
    if len(rows) < 2:
        yield Dropped("one image of its prompt")
        return
    images, ranks = [one["image_path"] for one in rows], [one["rank"] for one in rows]
    texts = {name: rows[0].get(name) for name in ("prompt", "classification")}
    yield from _PAIRS({**texts, "images": images, "ranks": ranks}, source)


RECIPE = Recipe(
    "imagereward",
    "https://huggingface.co/datasets/THUDM/ImageRewardDB",
    "apache-2.0",
    None,
    convert,
    ("**/metadata-*.parquet",),
    group_by="prompt_id",
)
