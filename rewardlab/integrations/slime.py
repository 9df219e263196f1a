"""slime: ``--custom-rm-path rewardlab.integrations.slime.judge_group --group-rm``, a group at a time, with its images.

The server is ``REWARDLAB_URL`` (http://localhost:8000). Images are those of ``sample.multimodal_inputs``; the question is
``metadata["question"]`` where a sample has one, else its prompt without chat marks. Without ``--group-rm`` slime asks about one
sample at a time: let its ``--rm-url`` be the server's ``/slime`` and start that with ``--cohort`` at the samples per prompt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rewardlab.errors import EndpointError
from rewardlab.integrations.chats import group_rewards, text_of
from rewardlab.integrations.client import RewardClient
from rewardlab.serving.text import plain


async def judge_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> list[float]:
    """A reward of each in -1..1. Raises EndpointError where one has none: slime knows no sample without."""
    client = RewardClient(os.environ.get("REWARDLAB_URL", "http://localhost:8000"))
    questions = [(one.metadata or {}).get("question") or plain(text_of(one.prompt)) for one in samples]
    images = [(getattr(one, "multimodal_inputs", None) or {}).get("images") or [] for one in samples]
    rewards = await group_rewards(client, questions, [plain(one.response) for one in samples], images)
    if None in rewards:
        raise EndpointError(f"{client.url}: no reward for {rewards.count(None)} of {len(rewards)} samples; see the log")
    return [reward for reward in rewards if reward is not None]
