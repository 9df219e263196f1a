"""ms-swift: an outcome reward for ``--external_plugins``.

    # plugin.py
    from swift.rewards import orms
    from rewardlab.integrations.ms_swift import JudgeORM

    class Judge(JudgeORM):
        address = "http://localhost:8000"

    orms["judge"] = Judge  # swift rlhf ... --external_plugins plugin.py --reward_funcs judge

Rows carry ``messages`` and ``images``, as its datasets do. An unjudged completion raises, for ms-swift would pay it 0, often
the best of its group: its advantages add up rewards with ``nansum``. Tested against ms-swift 4.6's loader and
``compute_rewards_per_func``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rewardlab.errors import DataError
from rewardlab.integrations.chats import read_prompt
from rewardlab.integrations.client import RewardClient, request_rewards


class JudgeORM:
    """A reward called with the completions of a batch and the columns of its rows. Raise EndpointError if one has no reward,
    DataError for an image that did not come with its row, and for videos and sounds, which are not sent."""

    address = "http://localhost:8000"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.client = RewardClient(self.address, **self.options)

    @property
    def num_failed(self) -> int:
        return self.client.num_failed

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        for name in ("videos", "audios"):
            if any(columns.get(name) or ()):
                raise DataError(f"rows have {name}, which judges do not support; expected text and images only")
        rows = columns.get("images") or [None] * len(completions)
        prompts = [read_prompt(_prompt(turns), images) for turns, images in zip(columns["messages"], rows, strict=True)]
        questions, images = [question for question, _ in prompts], [images for _, images in prompts]
        rewards = asyncio.run(request_rewards(self.client, questions, completions, images))
        return self.client.whole(rewards, "ms-swift would count each as 0; see the log")


def _prompt(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the turns before the one to be rewarded."""
    return messages[:-1] if messages[-1].get("role") == "assistant" else messages
