"""A client of ``rewardlab serve``: it sends groups of responses with their images, and returns a reward for each, or None."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from rewardlab.data.conversations import content_parts, read_content
from rewardlab.data.images import encode_png, plain_pixels, to_data_url
from rewardlab.data.media import embedded, image_of_array
from rewardlab.data.urls import system_certificates
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.samplers.concurrency import retry_after_s
from rewardlab.serving.schemas import MAX_CHARS

LOG = logging.getLogger(__name__)
# A full queue, a proxy without its server, a restart of engine or server, a deadline on the server.
PASSING = (429, 502, 503, 504)
UNJUDGED, DRAWS = '"unjudged"', 3  # status without a verdict, and how often such a request is sent
MAX_TIMEOUT_S = 3600.0  # the longest timeout_s of a request
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 5.0  # between two tries to connect
LOSSLESS_PIXELS = 1920 * 1080  # an image in memory up to this size is sent as a PNG; a phone's photo would be 20 MB
PHOTO_QUALITY, LONGEST_JPEG_PX = 95, 65_500


def image_url(image: Any) -> str:
    """Return a reference for the server of an image in any form of :mod:`rewardlab.data.media`: a URL, upload id or
    ``media:NAME`` stays; a file and encoded bytes are sent as they are, a PIL image or an array as
    :func:`rewardlab.data.images.plain_pixels` shows it. Raise OSError for an unreadable file, DataError for another object,
    MediaError for a broken PIL image."""
    image = embedded(image)
    if isinstance(image, str) and image.startswith(("data:", "upload:", "media:", "http://", "https://")):
        return image
    if isinstance(image, str):
        image = Path(image.removeprefix("file://")).read_bytes()
    if isinstance(image, np.ndarray):
        image = image_of_array(image, "an image")
    if not isinstance(image, bytes | Image.Image):
        raise DataError(f"an image is {image!r:.80}; expected a PIL image, encoded bytes, a path, a URL or upload:ID")
    return to_data_url(image if isinstance(image, bytes) else _encode(plain_pixels(image)))


def _encode(plain: Image.Image) -> bytes:
    """Return a PNG up to :data:`LOSSLESS_PIXELS`, else a JPEG: of an unchanged photo with the tables of its file, so that its
    pixels stay equal, of another image with :data:`PHOTO_QUALITY`."""
    if plain.width * plain.height <= LOSSLESS_PIXELS or max(plain.size) > LONGEST_JPEG_PX:
        return encode_png(plain)
    file = io.BytesIO()
    if plain.format == "JPEG" and getattr(plain, "quantization", None):  # a pickled one has no tables
        plain.save(file, "JPEG", quality="keep")
    else:
        plain.save(file, "JPEG", quality=PHOTO_QUALITY, subsampling=0)
    return file.getvalue()


async def image_urls(rows: Sequence[Sequence[Any]]) -> list[tuple[str, ...]]:
    """Return :func:`image_url` of the images in each row, encoded in a thread. An image in several rows, as one object or as
    several with equal pixels (TRL decodes a row once for each completion), is encoded once."""
    return await asyncio.to_thread(_image_urls, [list(row) for row in rows])


def _image_urls(rows: list[list[Any]]) -> list[tuple[str, ...]]:
    by_object: dict[int, str] = {}
    by_pixels: dict[tuple[tuple[int, int], bytes], str] = {}
    for image in (image for row in rows for image in row):
        if id(image) in by_object:
            continue
        if isinstance(image, Image.Image):
            plain = plain_pixels(image)
            pixels = (plain.size, hashlib.blake2b(plain.tobytes()).digest())
            if pixels not in by_pixels:
                by_pixels[pixels] = to_data_url(_encode(plain))
            by_object[id(image)] = by_pixels[pixels]
        else:
            by_object[id(image)] = image_url(image)
    return [tuple(by_object[id(image)] for image in row) for row in rows]


def group_key(question: str) -> str:
    """Return a key that responses to one question share, by which a balancer sends them to one of several servers, where they
    wait for each other."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class RewardClient:
    """A client of the server at ``url``, by default that of ``REWARDLAB_URL`` (http://localhost:8000). It waits up to
    ``deadline_s`` for a server that is full, restarts or cannot be reached; a failure is None, logged and counted.

    ``options`` go into every request: ``votes``, ``strategy``, ``anchor``, ``budget``, ``priority``. Defaults: ``api_key`` from
    ``REWARDLAB_API_KEY``, ``deadline_s`` from ``REWARDLAB_DEADLINE_S`` or 600. Raise EndpointError if the server refuses the
    key, an option or the size of a group, or is not a `rewardlab serve`: a retry cannot succeed. Raise ConfigError for a
    malformed ``url`` or deadline.
    """

    def __init__(self, url: str = "", *, api_key: str = "", deadline_s: float | None = None, **options: Any) -> None:
        url = url or os.environ.get("REWARDLAB_URL", "http://localhost:8000")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r}: expected the address of a server, such as http://localhost:8000")
        self.url, self.options = url.rstrip("/"), options
        self.deadline_s = _deadline_s() if deadline_s is None else deadline_s
        key = api_key or os.environ.get("REWARDLAB_API_KEY", "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.num_failed = 0

    async def rewards(
        self, question: str, responses: Sequence[Any], images: Sequence[Any] = (), **options: Any
    ) -> list[float | None]:
        """Return a reward in -1..1 for each response, None if it was not judged, is longer than the server accepts, or has
        neither another response nor an anchor to compare with. A response is a text, a list of parts with images in any form of
        :func:`image_url`, or one PIL image or array. ``options`` override those of the client."""
        options = self.options | options
        rewards: list[float | None] = [None] * len(responses)
        contents = [read_content(_in_parts(response), "a response") for response in responses]
        sent = [n for n, content in enumerate(contents) if len(content.text) <= MAX_CHARS]
        if num_long := len(responses) - len(sent):
            LOG.warning(
                "%s: %d of %d responses have more than %d characters: no reward", self.url, num_long, len(responses), MAX_CHARS
            )
        if len(sent) > 1 or (sent and options.get("strategy") == "anchor"):
            urls, *response_urls = await image_urls([images, *(contents[n].images for n in sent)])
            sendable = [replace(contents[n], images=of_answer) for n, of_answer in zip(sent, response_urls, strict=True)]
            body: dict[str, Any] = {"question": question, "responses": list(map(content_parts, sendable)), "images": list(urls)}
            body["timeout_s"] = min(max(1.0, self.deadline_s), MAX_TIMEOUT_S)
            for n, reward in zip(sent, await self._judge(body | options), strict=True):
                rewards[n] = reward
        elif sent:
            LOG.warning("%s: a single response without an anchor cannot be compared: no reward", self.url)
        self.num_failed += rewards.count(None)
        return rewards

    def whole(self, rewards: Sequence[float | None], reason: str = "see the log") -> list[float]:
        """Return rewards of which none is missing. Raise EndpointError, for a trainer that has no samples without."""
        judged = [reward for reward in rewards if reward is not None]
        if len(judged) < len(rewards):
            raise EndpointError(f"{self.url}: no reward for {len(rewards) - len(judged)} of {len(rewards)} samples; {reason}")
        return judged

    async def _judge(self, body: dict[str, Any]) -> list[float | None]:
        number = len(body["responses"])
        if (answer := await self.post("/v1/rewards", body, is_judged=_has_no_null)) is None:
            return [None] * number
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list) or len(rewards) != number:
            raise EndpointError(
                f"{self.url}/v1/rewards: the answer has no 'rewards', one for each of {number} responses; expected a "
                "`rewardlab serve` at this address"
            )
        return rewards

    async def post(
        self, path: str, body: Any, *, group: str = "", is_judged: Callable[[Any], bool] = lambda answer: True
    ) -> Any:
        """Return the JSON of the server's answer, or None if it fails. ``group`` is the :func:`group_key` of a sample that is
        sent alone: sent again after a lost answer, it is the same sample. A request whose answer is not ``is_judged`` is sent
        :data:`DRAWS` times at most."""
        headers = self._headers | ({"X-Group-Key": group, "Idempotency-Key": uuid.uuid4().hex} if group else {})
        body = _sendable(body)
        end, wait_s, num_unjudged = time.monotonic() + self.deadline_s, FIRST_WAIT_S, 0
        async with httpx.AsyncClient(headers=headers, timeout=self.deadline_s, verify=system_certificates()) as client:
            while True:
                try:
                    answer = self._read(path, await client.post(self.url + path, json=body))
                except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                    answer = _Failure(str(error))
                except httpx.HTTPError as error:
                    answer = _Failure(str(error) or type(error).__name__, wait_s)
                    wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
                if not isinstance(answer, _Failure):
                    is_whole = is_judged(answer)
                    num_unjudged += not is_whole
                    if is_whole or num_unjudged >= DRAWS or time.monotonic() >= end:
                        return answer
                    continue
                num_unjudged += answer.unjudged
                pause_s = (answer.wait_s or 0.0) * random.uniform(1.0, 1.25)  # not all of a run's requests at once
                if answer.wait_s is None or num_unjudged >= DRAWS or time.monotonic() + pause_s >= end:
                    LOG.warning("%s%s: %s: no reward", self.url, path, answer.sentence)
                    return None
                LOG.info("%s%s: %s: again in %.1f s", self.url, path, answer.sentence, pause_s)
                await asyncio.sleep(pause_s)

    def _read(self, path: str, response: httpx.Response) -> Any:
        """Return the JSON of an answer, or a _Failure. Raise EndpointError if a retry cannot succeed."""
        code, text = response.status_code, response.text[:200]
        if code in (401, 403, 404, 405):
            raise EndpointError(f"{self.url}{path}: HTTP {code}: {text}")
        if code == 422 and any(re.search(rf"\b{name}\b", response.text) for name in self.options):
            raise EndpointError(f"{self.url}{path}: the server refuses an option: {text}")
        status, sentence = _status_and_sentence(response)
        if code == 413 or (code == 422 and (status == "limit" or sentence.startswith("responses:"))):
            raise EndpointError(
                f"{self.url}{path}: HTTP {code}: {sentence}. Every group of this size would be refused: make the "
                "groups or their images smaller, or start the server with a higher --limit"
            )
        if code in PASSING:
            wait_s = retry_after_s(response.headers.get("Retry-After"), default=1.0)
            return _Failure(f"HTTP {code}: {text}", wait_s, UNJUDGED in response.text)
        if code != 200:
            return _Failure(f"HTTP {code}: {text}")
        try:
            return response.json()
        except ValueError:
            return _Failure(f"not JSON: {text}")


def _in_parts(response: Any) -> Any:
    """Return a response that is an image in memory as a part."""
    return [{"type": "image", "image": response}] if isinstance(response, Image.Image | np.ndarray) else response


@dataclass(frozen=True)
class _Failure:
    """Why there is no answer, after how many seconds to retry (None: never), and whether the judge gave no verdict."""

    sentence: str
    wait_s: float | None = None
    unjudged: bool = False


def _has_no_null(answer: Any) -> bool:
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    return not (isinstance(rewards, list) and None in rewards)


def _status_and_sentence(response: httpx.Response) -> tuple[str, str]:
    """Return (status, sentence) of a failure of our server, of another one ("", the beginning of its text)."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return str(answer.get("status", "")), answer["error"]
    return "", response.text[:200]


def _sendable(value: Any) -> Any:
    """Return a body with a "?" for each half of a surrogate pair, which JSON in UTF-8 cannot represent."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {name: _sendable(item) for name, item in value.items()}
    return [_sendable(item) for item in value] if isinstance(value, list | tuple) else value


def _deadline_s() -> float:
    text = os.environ.get("REWARDLAB_DEADLINE_S", "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"REWARDLAB_DEADLINE_S is {text!r}; expected seconds, such as 600")
    return seconds


async def request_rewards(
    client: RewardClient,
    questions: Sequence[str],
    responses: Sequence[Any],
    images: Sequence[Sequence[Any]],
    anchors: Sequence[str | None] = (),
) -> list[float | None]:
    """Return a reward for each response. Responses to one question about the same images are compared with each other, a single
    one with its anchor, if it has one."""
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
