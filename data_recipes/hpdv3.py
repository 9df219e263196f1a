"""HPD v3 (arXiv 2508.03789): people's choices between images of one text, by models and from the real world.

From third-party loaders: rows of JSON with ``prompt, path1, path2, model1, model2, confidence, choice_dist``, of which the
first image is the better one. Guessed: nothing; the test split, where the columns are the same, was not seen. 1.17 million
pairs by the paper.
"""

from __future__ import annotations

from rewardlab.config.data import MappingConfig
from rewardlab.data.recipes import recipe_of

RECIPE = recipe_of(
    MappingConfig(
        name="hpdv3",
        url="https://huggingface.co/datasets/MizzenAI/HPDv3",
        files=["**/*.json", "**/*.jsonl"],
        question="prompt",
        chosen="path1",
        rejected="path2",
    )
)
