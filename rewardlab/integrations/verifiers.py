"""verifiers (0.4 and on): a judge to plug in by its id, which compares a rollout's last reply with an anchor of its task.

An id is the name of a module without dots, so write a module with one import:

    # pairwise.py
    from rewardlab.integrations.verifiers import PairwiseJudge, __all__

    [[eval.judges]]
    id = "pairwise"
    base_url = "http://localhost:8000"
    anchor_field = "answer"  # the field of the task's data with the response to beat

A judge scores one trace. Rewards of a whole group belong into an environment's ``finalize``, by
:class:`rewardlab.integrations.client.RewardClient`.
"""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf

from rewardlab.errors import EndpointError
from rewardlab.integrations.client import RewardClient

__all__ = ["PairwiseJudge"]


class PairwiseJudgeConfig(vf.JudgeConfig):
    id: str = "pairwise"
    base_url: str = "http://localhost:8000"
    anchor_field: str = "answer"
    votes: int = 1


class PairwiseJudge(vf.Judge[float, PairwiseJudgeConfig]):
    """Reward in -1..1. Raise EndpointError if the reply cannot be judged."""

    async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
        options = {"strategy": "anchor", "anchor": str(getattr(task, self.config.anchor_field)), "votes": self.config.votes}
        client = RewardClient(self.config.base_url, **options)
        reward = (await client.rewards(task.prompt_text, [trace.last_reply], _image_urls(task.prompt)))[0]
        if reward is None:
            raise EndpointError(f"{client.url}: no reward for a reply; see the log")
        return reward


def _image_urls(prompt: Any) -> list[str]:
    """Return the image URLs of a prompt's messages."""
    messages = prompt if isinstance(prompt, list) else []
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    urls = [part.image_url for part in parts if getattr(part, "image_url", None)]
    return [url if isinstance(url, str) else url.url for url in urls]
