"""slime: ``--custom-rm-path rewardlab.integrations.slime.judge_group --group-rm``, a group at a time, with its images.

The server is ``REWARDLAB_URL`` (http://localhost:8000). Images are those of ``sample.multimodal_inputs``; the question is
``metadata["question"]`` if a sample has one, else its prompt without chat markup. Without ``--group-rm`` slime sends one
sample at a time: let its ``--rm-url`` be the server's ``/slime`` and start that with ``--group-size`` at the samples
per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardlab.integrations.chats import read_prompt
from rewardlab.integrations.client import RewardClient, request_rewards
from rewardlab.serving.conversations import strip_markup


async def judge_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> list[float]:
    """Return the rewards, in -1..1. Raise EndpointError if one is missing: slime has no samples without. Raise DataError for
    a prompt with a place of an image that did not come with it."""
    client = RewardClient()
    prompts = [
        read_prompt(sample.prompt, (getattr(sample, "multimodal_inputs", None) or {}).get("images")) for sample in samples
    ]
    prompts = [read_prompt(strip_markup(text), images) for text, images in prompts]  # without markup places may be first
    questions = [(sample.metadata or {}).get("question") or text for sample, (text, _) in zip(samples, prompts, strict=True)]
    responses = [strip_markup(sample.response) for sample in samples]
    return client.whole(await request_rewards(client, questions, responses, [images for _, images in prompts]))
