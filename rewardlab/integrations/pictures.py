"""Images and videos that a diffusion trainer generates: their pixels as parts of a response, and their rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from rewardlab.data.media import image_of_array
from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations.client import RewardClient, group_key, image_url, image_urls

NUM_FRAMES = 8  # of a video, as many as the server shows of a file


def picture_parts(pixels: Any, where: str, *, num_frames: int = NUM_FRAMES) -> list[dict[str, Any]]:
    """Return a generated image as the part of a response, a video as ``num_frames`` image parts at most, evenly spread.

    ``pixels``: a PIL image, an array (H, W, C) or a tensor (C, H, W), after another axis for frames; uint8, or floats in 0..1.
    Raise DataError for other types and shapes, and for other floats: clamped, they would be another picture.
    """
    if isinstance(pixels, Image.Image):
        return [{"type": "image", "image": pixels}]
    array = _channels_last(pixels)
    is_number = array.dtype == np.uint8 or array.dtype.kind == "f"
    if not is_number or array.ndim not in (3, 4) or array.shape[-1] not in (1, 3, 4) or 0 in array.shape:
        raise DataError(
            f"{where}: values of {array.dtype}, shape {tuple(getattr(pixels, 'shape', ()))}, are no picture; expected a PIL "
            "image, or uint8 or floats in an array (H, W, 3), a tensor (3, H, W), or frames of such"
        )
    frames = array[None] if array.ndim == 3 else array
    if num_frames < 1:
        raise DataError(f"num_frames is {num_frames}; expected at least 1")
    indices = np.linspace(0, len(frames) - 1, min(num_frames, len(frames))).astype(int)
    return [{"type": "image", "image": image_of_array(_uint8(frames[n], where), where)} for n in indices]


def _channels_last(pixels: Any) -> np.ndarray:
    """Return an array of pixels; a tensor, of any device and float type, has its channels before height and width."""
    if not hasattr(pixels, "detach"):
        return np.asarray(pixels)
    tensor = pixels.detach().cpu()
    array = np.asarray(tensor.float() if tensor.is_floating_point() else tensor)
    if array.ndim == 4 and array.shape[0] == 3 and array.shape[1] != 3:  # (C, T, H, W), of pipelines with sound
        array = array.swapaxes(0, 1)
    return np.moveaxis(array, -3, -1) if array.ndim >= 3 else array


def _uint8(frame: np.ndarray, where: str) -> np.ndarray:
    if frame.dtype.kind != "f":
        return frame
    if not ((frame >= 0) & (frame <= 1)).all():  # False for NaN
        raise DataError(
            f"{where}: pixels from {frame.min():.4g} to {frame.max():.4g}; expected floats in 0..1 (a pipeline's "
            'output_type="pt") or uint8'
        )
    return np.round(frame * 255).astype(np.uint8)


async def picture_rewards(
    client: RewardClient,
    question: str,
    answers: Sequence[list[dict[str, Any]]],
    images: Sequence[Any] = (),
    *,
    anchor: Any = None,
    is_whole: bool = True,
) -> list[float | None]:
    """Return a reward in -1..1 for each answer to a prompt with ``images``, None if it was not judged. Answers are compared
    with the picture ``anchor`` if there is one, else with each other. If the group is not whole, other processes have the rest
    of it: every answer waits on the server for the others, ``--group-size`` in all."""
    if anchor is not None:
        anchor_parts = [{"type": "image", "image": await asyncio.to_thread(image_url, anchor)}]
        return await client.rewards(question, answers, images, strategy="anchor", anchor=anchor_parts)
    if is_whole:
        return await client.rewards(question, answers, images)
    question_urls, *answer_urls = await image_urls([images, *([part["image"] for part in answer] for answer in answers)])
    chats = [
        [
            {"role": "user", "content": [*map(_image_part, question_urls), {"type": "text", "text": question}]},
            {"role": "assistant", "content": list(map(_image_part, urls))},
        ]
        for urls in answer_urls
    ]
    return list(await asyncio.gather(*(_member_reward(client, chat, group_key(question)) for chat in chats)))


def _image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def _member_reward(client: RewardClient, chat: list[dict[str, Any]], group: str) -> float | None:
    answer = await client.post("/pooling", {"messages": chat}, group=group)
    if answer is None:
        return None
    try:
        return float(answer["data"][0]["data"][-1])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EndpointError(
            f"{client.url}/pooling: the answer has no reward ({error!r}); expected a `rewardlab serve` at this address"
        ) from error
