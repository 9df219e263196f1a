"""Pairs from Python objects: texts with images that are paths, bytes, PIL images, data URLs or allowed URLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image

from rewardlab.data.images import from_data_url, plain_image, plain_png, read_image
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import FRAMES, Files, from_row, validate, with_frames
from rewardlab.data.urls import MAX_IMAGE_BYTES, AllowedUrls, fetch_media
from rewardlab.errors import DataError, MediaError
from rewardlab.types import Candidates, PreferencePair

PairInput = PreferencePair | Mapping[str, Any]


def load_image(image: Any, urls: AllowedUrls, *, where: str) -> bytes:
    """Return an encoded image, as :func:`rewardlab.data.images.plain_image` gives it, of a path, encoded bytes, a PIL image, a
    data URL, ``{"bytes", "path"}`` or an allowed URL. Raise MediaError."""
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes | bytearray | memoryview):
        return plain_image(bytes(image), where=where)
    if isinstance(image, str) and image.startswith("data:"):
        return plain_image(from_data_url(image), where=where)
    if isinstance(image, str) and image.startswith(("http://", "https://")):
        if not urls.allows(image):
            raise MediaError(
                f"{where}: {image[:80]!r} is not fetched; allow it with allow_urls=[{_beginning(image)!r}], or download it"
            )
        return plain_image(fetch_media(image, where, MAX_IMAGE_BYTES), where=where)
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if isinstance(image, Image):
        return plain_png(image, where=where)
    raise MediaError(
        f"{where}: expected a path, encoded bytes, a PIL image, a data URL or an allowed URL, got {type(image).__name__}"
    )


def _beginning(url: str) -> str:
    return url[: url.rfind("/") + 1] if url.count("/") > 2 else f"{url}/"


def candidates_of_texts(
    question: str, responses: Sequence[str], *, images: Sequence[Any] = (), urls: AllowedUrls | None = None
) -> Candidates:
    """Return a question and its responses, to be ranked or rewarded. Raise DataError or MediaError."""
    texts = _texts(question, responses)
    if not question.strip():
        raise DataError("the question is empty")
    return Candidates("prompt", question, texts, load_images(images, urls or AllowedUrls()))


def load_images(images: Sequence[Any], urls: AllowedUrls) -> tuple[bytes, ...]:
    """Return :func:`load_image` of each. Raise MediaError."""
    return tuple(load_image(image, urls, where=f"image {n}") for n, image in enumerate(_list(images, "images")))


def _texts(question: object, responses: object) -> tuple[str, ...]:
    if isinstance(responses, str) or not isinstance(responses, Sequence):
        raise DataError(f"expected a list of responses, got {type(responses).__name__}")
    texts = tuple(responses)
    if wrong := next((text for text in (question, *texts) if not isinstance(text, str)), None):
        raise DataError(f"expected question and responses as texts, got {type(wrong).__name__}")
    return texts


def _list(media: object, name: str) -> Sequence[Any]:
    if isinstance(media, str | bytes | Path) or not isinstance(media, Sequence):
        raise MediaError(f"expected a list of {name}, got {type(media).__name__}; write {name}=[...]")
    return media


def pair_of(
    value: PairInput, number: int, urls: AllowedUrls, *, frames: int = FRAMES, policy: VideoPolicy | None = None
) -> PreferencePair:
    """Return a checked pair of a pair, or of a row with the columns of :mod:`rewardlab.data.rows`.

    Only question and responses are required. Images may be anything that :func:`load_image` takes; videos are paths or bytes,
    sampled to ``frames`` by ``policy``. Raise DataError or MediaError, naming the pair by ``number``.
    """
    where = f"pair {number}"
    if isinstance(value, PreferencePair):
        return with_frames(validate(value, where=where), frames, policy=policy)
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected a PreferencePair or a row with question and responses, got {type(value).__name__}")
    row = dict(value)
    for name in ("images", "response_images"):
        if row.get(name) is not None:
            row[name] = _embedded(row[name], urls, f"{where}, {name}")
    if isinstance(row.get("videos"), list | tuple):
        row["videos"] = [{"bytes": v} if isinstance(v, bytes) else str(v) if isinstance(v, Path) else v for v in row["videos"]]
    for name in ("question", "responses"):
        row[name] = _parts(row.get(name), urls, f"{where}, {name}")
    return with_frames(
        from_row(row, index=number, files=Files(checked=True, is_callers=True), where="pair"), frames, policy=policy
    )


def _embedded(value: Any, urls: AllowedUrls, where: str) -> Any:
    """Return lists of images with each image as ``{"bytes"}``."""
    if isinstance(value, list | tuple):
        return [_embedded(item, urls, where) for item in value]
    return {"bytes": load_image(value, urls, where=where)}


def _parts(value: Any, urls: AllowedUrls, where: str) -> Any:
    """Return a text, or parts with their images as ``{"bytes"}``; ``from_row`` refuses anything else."""
    if isinstance(value, list | tuple):
        return [_parts(item, urls, where) for item in value]
    if isinstance(value, Mapping) and value.get("type") == "image":
        return {**value, "image": {"bytes": load_image(value.get("image"), urls, where=where)}}
    return value
