"""TRL's ``GRPOTrainer`` and its kin: an async reward function that sees the images of its rows.

    from rewardlab.integrations.trl import judge_reward

    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-VL-7B-Instruct",
        reward_funcs=judge_reward("http://localhost:8000", votes=2),
        args=GRPOConfig(num_generations=8, ...),
        train_dataset=dataset,  # columns: prompt, and image or images
    )

A group of which a process sees only a part is compared within that part. What cannot be judged is None, which TRL leaves out.
The metric ``judge/policy_signs`` counts the signs that the server sees of a policy that pleases the judge rather than gets
better; a warning names each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rewardlab.integrations.chats import chat_images, chat_text, request_rewards
from rewardlab.integrations.client import RewardClient


def judge_reward(url: str, **options: Any) -> Callable[..., Awaitable[list[float | None]]]:
    """Return the reward function for a server; ``options`` are those of :class:`RewardClient`."""
    client = RewardClient(url, **options)

    async def judge(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        rows = columns.get("images") or [None if image is None else [image] for image in columns.get("image") or ()]
        images = [row or [] for row in rows] or [chat_images(prompt) for prompt in prompts]
        rewards = await request_rewards(client, [chat_text(p) for p in prompts], [chat_text(c) for c in completions], images)
        if log_metric := columns.get("log_metric"):
            log_metric("judge/policy_signs", float(len(client.signs)))
        return rewards

    return judge
