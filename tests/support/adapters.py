"""Rewards of three responses to a question about images, by the adapter of each trainer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from rewardlab.integrations import slime
from rewardlab.integrations.ms_swift import JudgeORM
from rewardlab.integrations.trl import judge_reward
from tests.support.scripted_judge import ANSWERS


def by_trl(url: str, question: str, images: list[Any] | None) -> list[float | None]:
    return asyncio.run(judge_reward(url)([question] * 3, ANSWERS, **({"images": [images] * 3} if images else {})))


def by_ms_swift(url: str, question: str, images: list[Any] | None) -> list[float]:
    class Judge(JudgeORM):
        address = url

    messages = [[{"role": "user", "content": question}]] * 3
    return Judge()(ANSWERS, messages=messages, **({"images": [images] * 3} if images else {}))


def by_slime(url: str, question: str, images: list[Any] | None) -> list[float]:
    """The server is that of the environment."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    media = {"images": images} if images else None
    group = [SimpleNamespace(prompt=prompt, response=a, metadata=None, multimodal_inputs=media) for a in ANSWERS]
    return asyncio.run(slime.judge_group(None, group))
