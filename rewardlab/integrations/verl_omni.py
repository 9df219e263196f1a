"""verl-omni: a scorer in place of its ``http_scorer_client``, which exchanges pickles with a server.

    reward.custom_reward_function.path=pkg://rewardlab.integrations.verl_omni
    reward.custom_reward_function.name=compute_score

The server is ``REWARDLAB_URL`` (http://localhost:8000). verl-omni scores one sample at a time in one of ``reward.num_workers``
processes: samples of one prompt wait for each other on the server, started with ``--group-size`` at ``rollout.n``. Validation
with one sample a prompt needs an ``anchor`` in ``extra_info``, a picture to beat. Beside other rewards, under
``reward.reward_functions.judge``, set ``required=true``: without it ``MultiVisualRewardManager`` pays 0 for a sample without a
reward. Tested with the reward managers of August 2026.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations.client import RewardClient
from rewardlab.integrations.pictures import NUM_FRAMES, picture_parts, picture_rewards


async def compute_score(
    data_source: str,
    solution_image: Any,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    server_url: str = "",
    num_frames: int = NUM_FRAMES,
    **kwargs: Any,
) -> dict[str, float]:
    """Return ``score`` of a sample, in -1..1.

    ``solution_image``: uint8, (C, H, W), or (T, C, H, W) for a video, of which ``num_frames`` are sent. The prompt is
    ``extra_info["question"]``, ``["prompt"]`` or ``["raw_prompt"]``, else ``ground_truth``; ``extra_info["images"]`` are its
    images, for editing. Raise DataError for latents and without a prompt, EndpointError without a reward."""
    info = extra_info or {}
    question = next((text for name in ("question", "prompt", "raw_prompt") if (text := info.get(name))), ground_truth)
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{data_source}: the prompt is {question!r:.80}; expected a text in extra_info['question']")
    dtype = getattr(solution_image, "dtype", type(solution_image).__name__)
    if str(dtype) not in ("torch.uint8", "uint8"):
        raise DataError(
            f"{data_source}: the sample is of {dtype}; expected pixels of uint8 (rollout.pipeline.output_type=image): judges "
            "do not see latents"
        )
    client = RewardClient(server_url)
    parts = await asyncio.to_thread(picture_parts, solution_image, data_source, num_frames=int(num_frames))
    images = info.get("images")  # may be an array, which has no truth value
    anchor = info.get("anchor") or None
    [reward] = await picture_rewards(client, question, [parts], () if images is None else images, anchor=anchor, is_whole=False)
    if reward is None:
        raise EndpointError(f"{client.url}: no reward for a sample of {data_source}; see the log")
    return {"score": reward}
