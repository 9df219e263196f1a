"""Prompts and completions in the formats of trainers, converted to texts and rewarded in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rewardlab.integrations.client import RewardClient, image_url


def chat_text(turns: Any) -> str:
    """Return the text of a prompt or completion: a text, or messages whose contents are texts or parts; images are left out."""
    if isinstance(turns, str):
        return turns
    texts = []
    for message in turns:
        content = message.get("content") or ""
        parts = (
            [content] if isinstance(content, str) else [part.get("text") or "" for part in content if isinstance(part, dict)]
        )
        texts.append((message.get("role", "user"), "\n".join(part for part in parts if part)))
    texts = [(role, text) for role, text in texts if text]
    return texts[0][1] if len(texts) == 1 else "\n".join(f"{role.capitalize()}: {text}" for role, text in texts)


def chat_images(turns: Any) -> list[Any]:
    """Return the images within the messages of a prompt."""
    if isinstance(turns, str):
        return []
    parts = [part for message in turns if isinstance(message.get("content"), list) for part in message["content"]]
    return [part["image"] for part in parts if isinstance(part, dict) and part.get("image") is not None]


async def request_rewards(
    client: RewardClient, questions: Sequence[str], responses: Sequence[str], images: Sequence[Sequence[Any]]
) -> list[float | None]:
    """Return a reward for each response; responses to one question about the same images are compared with each other."""
    urls = [tuple(map(image_url, row)) for row in images]
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for n, key in enumerate(zip(questions, urls, strict=True)):
        groups.setdefault(key, []).append(n)
    needs_group = client.options.get("strategy") != "anchor"

    async def request(question: str, images: tuple[str, ...], indices: list[int]) -> list[float | None]:
        if len(indices) == 1 and needs_group:  # nothing to compare it with
            return [None]
        return await client.rewards(question, [responses[n] for n in indices], images)

    results = await asyncio.gather(*(request(*prompt, indices) for prompt, indices in groups.items()))
    rewards: list[float | None] = [None] * len(responses)
    for indices, values in zip(groups.values(), results, strict=True):
        for n, reward in zip(indices, values, strict=True):
            rewards[n] = reward
    return rewards
