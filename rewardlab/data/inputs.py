"""Pairs from Python objects: texts with images that are paths, bytes, PIL images, data URLs or allowed URLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardlab.data.media import Files
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import FRAMES, candidates_from_row, from_row, validate, with_frames
from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import DataError, MediaError
from rewardlab.types import Candidates, PreferencePair

PairInput = PreferencePair | Mapping[str, Any]


def candidates_of_texts(
    question: Any,
    responses: Sequence[Any],
    *,
    images: Sequence[Any] = (),
    criteria: Sequence[Any] = (),
    urls: AllowedUrls | None = None,
) -> Candidates:
    """Return a question and its responses, to be ranked or rewarded; each is a text, parts or messages. Raise DataError or
    MediaError."""
    if isinstance(responses, str) or not isinstance(responses, Sequence):
        raise DataError(f"expected a list of responses, got {type(responses).__name__}")
    files = Files(is_callers=True, urls=urls or AllowedUrls())
    row = {"question": question, "images": _list(images, "images"), "criteria": criteria}
    return candidates_from_row(row, responses, prompt_id="prompt", files=files, where="the prompt", answers_quote=True)


def _list(media: object, name: str) -> Sequence[Any]:
    if isinstance(media, str | bytes | Path) or not isinstance(media, Sequence):
        raise MediaError(f"expected a list of {name}, got {type(media).__name__}; write {name}=[...]")
    return media


def pair_of(
    value: PairInput, number: int, urls: AllowedUrls, *, frames: int = FRAMES, policy: VideoPolicy | None = None
) -> PreferencePair:
    """Return a checked pair of a pair, or of a row with the columns of :mod:`rewardlab.data.rows`.

    Only question and responses are required. Images may be anything that :mod:`rewardlab.data.media` reads; videos are paths,
    bytes or allowed URLs, sampled to ``frames`` by ``policy``. Raise DataError or MediaError, naming the pair by ``number``.
    """
    where = f"pair {number}"
    if isinstance(value, PreferencePair):
        return with_frames(validate(value, where=where), frames, policy=policy)
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected a PreferencePair or a row with question and responses, got {type(value).__name__}")
    files = Files(is_callers=True, urls=urls)
    pair = from_row(value, index=number, files=files, where="pair", answers_quote=True)
    return with_frames(pair, frames, policy=policy)
