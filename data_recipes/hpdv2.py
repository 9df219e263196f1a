"""HPD v2 (arXiv 2306.09341): people's choices between images that models made of one text.

By its card, ``train.json`` is a list of ``human_preference`` (1 for the better of two), ``prompt``, ``file_path``;
``test.json`` of ``prompt, image_path, rank`` (an average, 1 is the best), ``raw_annotations``. By third-party code the
training rows in circulation name the images ``image_path``; both are read. Guessed: nothing. Paths start at ``--images``.
645,090 training pairs by the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.config.data import MappingConfig
from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, recipe_of
from rewardlab.types import PreferencePair

_PAIRS = recipe_of(MappingConfig(name="hpdv2", question="prompt", responses=["images"], scores=["scores"])).convert


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield every two images of a prompt; equal ranks are ties."""
    scores = row["human_preference"] if "human_preference" in row else [-rank for rank in row["rank"]]
    images = row["file_path"] if "file_path" in row else row["image_path"]
    yield from _PAIRS({"prompt": row["prompt"], "images": images, "scores": scores}, source)


RECIPE = Recipe(
    "hpdv2", "https://huggingface.co/datasets/ymhao/HPDv2", "apache-2.0", None, convert, ("**/train.json", "**/test.json")
)
