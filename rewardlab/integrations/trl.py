"""TRL's ``GRPOTrainer`` and its kin: an async reward function that sees the images of its rows.

    from rewardlab.integrations.trl import judge_reward

    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-VL-7B-Instruct",
        reward_funcs=judge_reward("http://localhost:8000", votes=2),
        args=GRPOConfig(num_generations=8, ...),
        train_dataset=dataset,  # columns: prompt, and image or images
    )

If a process has only a part of a group, the comparison is within that part. An unjudged completion gets None. TRL leaves it
out if the judge is the only reward function; beside others TRL would pay it 0, so that the judge raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rewardlab.integrations.chats import chat_text, read_prompt
from rewardlab.integrations.client import RewardClient, request_rewards


def judge_reward(url: str, **options: Any) -> Callable[..., Awaitable[list[float | None]]]:
    """Return the reward function for a server; ``options`` are those of :class:`RewardClient`.

    The function raises DataError for a prompt with a place of an image that did not come with it, and EndpointError for a
    completion without a reward if the trainer would pay it 0."""
    client = RewardClient(url, **options)

    async def judge(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        rows = columns.get("images") or [None if image is None else [image] for image in columns.get("image") or ()]
        pairs = [read_prompt(prompt, row) for prompt, row in zip(prompts, rows or [None] * len(prompts), strict=True)]
        questions, images = [question for question, _ in pairs], [images for _, images in pairs]
        rewards = await request_rewards(client, questions, [chat_text(c) for c in completions], images)
        if not _pays_none_as_0(getattr(columns.get("log_metric"), "__self__", None)):
            return rewards
        cure = 'use the judge as the only one or, in GRPO, set multi_objective_aggregation="normalize_then_sum"; see the log'
        return [*client.whole(rewards, f"TRL would count each as 0 next to its other reward functions: {cure}")]

    return judge


def _pays_none_as_0(trainer: Any) -> bool:
    """Return whether a trainer, whose method ``log_metric`` is, makes 0 of a None: it adds up several functions by ``nansum``,
    and leaves out only what none of them rewards. Normalized before that, 0 is the mean of the group, which moves nothing."""
    several = len(getattr(trainer, "reward_funcs", ())) > 1
    return several and getattr(trainer, "multi_objective_aggregation", "") != "normalize_then_sum"
