"""Prompts and completions in the formats of trainers, converted to texts and rewarded in groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rewardlab.errors import DataError
from rewardlab.integrations.client import RewardClient, image_urls

TEXT_KINDS = ("text", "input_text", "output_text")  # of parts: of Qwen, TRL and OpenAI's chats; of its Responses API
IMAGE_KINDS = ("image", "image_url", "input_image")
IMAGE_KEYS = ("image", "image_url", "url", "path")  # of a part: those of transformers' chat templates as well
# Where an image stands in a text: the marks that the server knows in a text without its images.
IMAGE_PLACE = re.compile(
    r"<\|(?:image_pad|video_pad|vision_start|vision_end|image|image_1)\|>|<image>|<(?:start|end)_of_image>"
)


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
    """Return the images within the messages of a prompt. Raise DataError for a part that is neither text nor image."""
    return [image for image in _places(turns) if image is not None]


def read_prompt(turns: Any, images: Sequence[Any] | None = None) -> tuple[str, list[Any]]:
    """Return the question of a prompt, without the marks of its images, and the images: those of its row, ``images``, else
    those within its messages.

    Raise DataError for a place of an image that no image goes with: judged blind, a response would get a number that means
    nothing.
    """
    text, places = chat_text(turns), _places(turns)
    given = list(() if images is None else images) or [image for image in places if image is not None]
    mark = IMAGE_PLACE.search(text)
    if len(given) < len(places) or (mark and not given):
        raise DataError(
            f"the prompt {text!r:.80} has {max(1, len(places))} place(s) for images{f' ({mark[0]})' if mark else ''}, and "
            f"{len(given)} images came with it: give each in the row or in its part of the prompt, or take the place out"
        )
    return IMAGE_PLACE.sub("", text).strip(), given


def _places(turns: Any) -> list[Any]:
    """Return the image of each part of a prompt that is one, None where a part shows only its place. Raise DataError for a part
    of another kind, such as a video: the judge would not see it."""
    contents = [] if isinstance(turns, str) else [message.get("content") for message in turns]
    parts = [part for content in contents if content and not isinstance(content, str) for part in content]
    places = []
    for part in parts:
        fields = part if isinstance(part, Mapping) else {"type": type(part).__name__}
        kind, image = fields.get("type"), next((fields[key] for key in IMAGE_KEYS if fields.get(key) is not None), None)
        if kind in IMAGE_KINDS or (kind is None and image is not None):
            places.append(image.get("url", image) if isinstance(image, Mapping) else image)
        elif kind not in TEXT_KINDS and not isinstance(fields.get("text"), str):
            raise DataError(f"a part of the prompt is of kind {kind!r}, which a judge is not shown; expected text or an image")
    return places


async def request_rewards(
    client: RewardClient,
    questions: Sequence[str],
    responses: Sequence[str],
    images: Sequence[Sequence[Any]],
    anchors: Sequence[str | None] = (),
) -> list[float | None]:
    """Return a reward for each response; responses to one question about the same images are compared with each other, one that
    is alone with its anchor, if it has one."""
    prompts = zip(questions, await image_urls(images), anchors or [None] * len(questions), strict=True)
    groups: dict[tuple[str, tuple[str, ...], str | None], list[int]] = {}
    for n, key in enumerate(prompts):
        groups.setdefault(key, []).append(n)

    async def request(question: str, images: tuple[str, ...], anchor: str | None, indices: list[int]) -> list[float | None]:
        options = {"strategy": "anchor", "anchor": anchor} if anchor and len(indices) == 1 else {}
        return await client.rewards(question, [responses[n] for n in indices], images, **options)

    results = await asyncio.gather(*(request(*prompt, indices) for prompt, indices in groups.items()))
    rewards: list[float | None] = [None] * len(responses)
    for indices, values in zip(groups.values(), results, strict=True):
        for n, reward in zip(indices, values, strict=True):
            rewards[n] = reward
    return rewards
