"""flow_grpo: a scorer for ``multi_score``, in place of those that exchange pickles with a server.

    # flow_grpo/rewards.py
    from rewardlab.integrations.flow_grpo import judge_score

    score_functions = {"judge": judge_score, ...}  # in multi_score; config.reward_fn = {"judge": 1.0}

The server is ``REWARDLAB_URL`` (http://localhost:8000). Images of one prompt are compared with each other. flow_grpo spreads
them over its processes: with several, they wait for each other on the server, started with ``--group-size`` at
``config.sample.num_image_per_prompt``. An image whose metadata has an ``anchor``, a picture to beat, is compared with that.
Tested with its ``multi_score``, sampler and advantages of July 2025.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewardlab.errors import DataError
from rewardlab.integrations.client import RewardClient, image_url
from rewardlab.integrations.pictures import picture_parts, picture_rewards

Scorer = Callable[[Any, Sequence[str], Any], tuple[list[float], dict[str, Any]]]


def judge_score(url: str = "") -> Scorer:
    """Return ``score(images, prompts, metadata)``, whose result are the rewards, in -1..1, and an empty dict.

    ``images``: a tensor (N, 3, H, W) of floats in 0..1 or uint8, with a frame axis before the 3 for videos; an array of uint8
    (N, H, W, 3); or PIL images. The function raises EndpointError if one has no reward: flow_grpo has no samples without.
    It raises DataError for pixels that are no picture, and for other numbers of images and prompts."""
    client = RewardClient(url)
    is_whole = int(os.environ.get("WORLD_SIZE", "1")) == 1  # of processes that accelerate or torchrun has started

    def score(images: Any, prompts: Sequence[str], metadata: Any) -> tuple[list[float], dict[str, Any]]:
        if len(images) != len(prompts):
            raise DataError(f"{len(images)} images for {len(prompts)} prompts; expected equal numbers")
        answers = [picture_parts(image, f"image {n}") for n, image in enumerate(images)]
        rewards = asyncio.run(_rewards(client, prompts, answers, _anchors(metadata, len(prompts)), is_whole))
        return client.whole(rewards, "see the log; the only image of a prompt needs an 'anchor' in its metadata"), {}

    return score


async def _rewards(
    client: RewardClient, prompts: Sequence[str], answers: Sequence[Any], anchors: Sequence[str | None], is_whole: bool
) -> list[float | None]:
    groups: dict[tuple[str, str | None], list[int]] = {}
    for n, key in enumerate(zip(prompts, anchors, strict=True)):
        groups.setdefault(key, []).append(n)
    requests = [
        picture_rewards(client, prompt, [answers[n] for n in indices], anchor=anchor, is_whole=is_whole)
        for (prompt, anchor), indices in groups.items()
    ]
    by_index: dict[int, float | None] = {}
    for indices, values in zip(groups.values(), await asyncio.gather(*requests), strict=True):
        by_index |= zip(indices, values, strict=True)
    return [by_index[n] for n in range(len(prompts))]


def _anchors(metadata: Any, number: int) -> list[str | None]:
    """Return the reference of each row's anchor, None without one; all rows may share one metadata object."""
    rows = metadata if isinstance(metadata, Sequence) and len(metadata) == number else [metadata] * number
    anchors = [row.get("anchor") if isinstance(row, Mapping) else None for row in rows]
    return [None if anchor is None else image_url(anchor) for anchor in anchors]
