"""EasyR1: ``worker.reward.reward_function=rewardlab/integrations/easyr1.py:compute_score``, called with a batch at a time.

The server is ``REWARDLAB_URL`` (http://localhost:8000). Neither prompt nor image is passed on: let ``ground_truth`` be JSON,
``{"question": "...", "media": ["upload:ID"], "anchor": "..."}``. Responses with the same ground truth are compared with each
other; one that comes alone, as in validation, with the anchor.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rewardlab.errors import DataError
from rewardlab.integrations.chats import read_prompt
from rewardlab.integrations.client import RewardClient, request_rewards

REWARD_NAME = "judge"
REWARD_TYPE = "batch"


@dataclass(frozen=True)
class GroundTruth:
    """The fields of a ``ground_truth`` for the judge."""

    question: str
    media: tuple[str, ...]
    anchor: str | None


def compute_score(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """Return ``{"overall": float}`` for each, in -1..1. Raise DataError for a ground truth that is no such JSON, and for a
    response that comes alone without an anchor; EndpointError if one has no reward: EasyR1 has no samples without."""
    truths = [_truth(row["ground_truth"]) for row in reward_inputs]
    counts = Counter(truths)
    if num_alone := sum(counts[truth] == 1 and truth.anchor is None for truth in truths):
        raise DataError(
            f"{num_alone} of {len(truths)} responses came alone and cannot be compared: give their ground_truth an "
            '"anchor", a response to beat; or ask for two or more (worker.rollout.n, and for validation '
            "worker.rollout.val_override_config.n); or turn validation off (trainer.val_freq=-1 trainer.val_before_train=false)"
        )
    client = RewardClient()
    questions, responses = [truth.question for truth in truths], [row["response"] for row in reward_inputs]
    media, anchors = [truth.media for truth in truths], [truth.anchor for truth in truths]
    rewards = asyncio.run(request_rewards(client, questions, responses, media, anchors))
    return [{"overall": reward} for reward in client.whole(rewards)]


def _truth(text: Any) -> GroundTruth:
    try:
        label = json.loads(text)
        question, media, anchor = label["question"], label.get("media") or [], label.get("anchor") or None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f'ground_truth: expected JSON as {{"question": "...", "media": [...]}} ({error!r})') from error
    if not isinstance(media, list) or not all(isinstance(reference, str) for reference in media):
        raise DataError(f"ground_truth: its media is {media!r:.80}; expected a list of image references such as upload:ID")
    for name, value in (("question", question), ("anchor", anchor)):
        if not isinstance(value, str | None):
            raise DataError(f"ground_truth: its {name} is {value!r:.80}; expected a string")
    question, _ = read_prompt(question, media)
    return GroundTruth(question, tuple(media), anchor)
