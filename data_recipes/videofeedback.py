"""VideoFeedback (VideoScore, arXiv 2406.15252): people's scores of generated videos in five dimensions, 1 to 4.

A row scores one video; every two videos of one text are a pair, by the mean of the five scores. From public code
(TIGER-AI-Lab/VideoScore, and users of the set): ``id``, ``text prompt``, ``video link``, and a column for each dimension.
Guessed: that the archives of videos unpack to ``ID.mp4``, or to a folder of the id's first letter as the links have it. 37.6
thousand videos by the paper; rows of a text with one video make no pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.config.data import MappingConfig
from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, recipe_of
from rewardlab.types import PreferencePair

DIMENSIONS = ("visual quality", "temporal consistency", "dynamic degree", "text-to-video alignment", "factual consistency")
_PAIRS = recipe_of(MappingConfig(name="videofeedback", question="prompt", responses=["videos"], scores=["scores"])).convert


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield every two videos of a text; equal means are ties."""
    rows = row["rows"]
    if len(rows) < 2:
        yield Dropped("one video of its text")
        return
    videos = [f"{str(one['id'])[0]}/{one['id']}.mp4" for one in rows]
    scores = [sum(float(one[name]) for name in DIMENSIONS) / len(DIMENSIONS) for one in rows]
    yield from _PAIRS({"prompt": rows[0]["text prompt"], "videos": videos, "scores": scores}, source)


RECIPE = Recipe(
    "videofeedback",
    "https://huggingface.co/datasets/TIGER-Lab/VideoFeedback",
    "apache-2.0",
    None,
    convert,
    group_by="text prompt",
)
