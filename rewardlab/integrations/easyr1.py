"""EasyR1: ``worker.reward.reward_function=rewardlab/integrations/easyr1.py:compute_score``, called with a batch at a time.

The server is ``REWARDLAB_URL`` (http://localhost:8000). Neither prompt nor image is passed on: let ``ground_truth`` be JSON,
``{"question": "...", "media": ["upload:ID"]}``. Responses with the same ground truth are compared with each other.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations.chats import request_rewards
from rewardlab.integrations.client import RewardClient

REWARD_NAME = "judge"
REWARD_TYPE = "batch"


def compute_score(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """Return ``{"overall": float}`` for each, in -1..1. Raises DataError for a ground truth that is no such JSON, EndpointError
    if one has no reward: EasyR1 has no samples without."""
    try:
        labels = [json.loads(row["ground_truth"]) for row in reward_inputs]
        questions, media = [label["question"] for label in labels], [label.get("media") or [] for label in labels]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f'ground_truth: expected JSON as {{"question": "...", "media": [...]}} ({error!r})') from error
    client = RewardClient(os.environ.get("REWARDLAB_URL", "http://localhost:8000"))
    rewards = asyncio.run(request_rewards(client, questions, [row["response"] for row in reward_inputs], media))
    if None in rewards:
        raise EndpointError(f"{client.url}: no reward for {rewards.count(None)} of {len(rewards)} responses")
    return [{"overall": reward} for reward in rewards if reward is not None]
