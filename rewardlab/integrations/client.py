"""A client of ``rewardlab serve``: it sends groups of responses with their images, and returns a reward for each, or None."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from rewardlab.data.images import encode_png, to_data_url
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.samplers.concurrency import retry_after_s

LOG = logging.getLogger(__name__)


def image_url(image: Any) -> str:
    """Return a reference that the server understands, for an image as datasets have it: a URL, upload id or ``media:NAME``
    (unchanged), a path, encoded bytes, ``{"bytes", "path"}``, or a PIL image. Raises MediaError or OSError for a file that is
    no image."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, str) and image.startswith(("data:", "upload:", "media:", "http://", "https://")):
        return image
    if isinstance(image, str | Path):
        image = Path(str(image).removeprefix("file://")).read_bytes()
    return to_data_url(image if isinstance(image, bytes) else encode_png(image.convert("RGB")))


@cache
def _certificates() -> ssl.SSLContext:
    """Return the system's certificates, read once: that takes longer than a request."""
    return httpx.create_ssl_context()


class RewardClient:
    """A client of one server. It waits for a full queue, as long as ``deadline_s`` allows; a failure is None, logged, counted.

    ``options`` go into every request: ``votes``, ``strategy``, ``anchor``, ``budget``, ``priority``. The key is ``api_key`` or
    the environment's ``REWARDLAB_API_KEY``. Raise EndpointError if the server refuses the key or one of the options, or has no
    such path: no reward would ever come. Raise ConfigError for a ``url`` that is none.
    """

    def __init__(self, url: str, *, api_key: str = "", deadline_s: float = 600.0, **options: Any) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r}: expected the address of a server, such as http://localhost:8000")
        self.url, self.deadline_s, self.options = url.rstrip("/"), deadline_s, options
        key = api_key or os.environ.get("REWARDLAB_API_KEY", "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.num_failed = 0

    async def rewards(
        self, question: str, responses: Sequence[str], images: Sequence[Any] = (), **options: Any
    ) -> list[float | None]:
        """Return a reward for each response, in -1..1, None if it was not judged. ``options`` override those of the client."""
        body = {"question": question, "responses": list(responses), "images": [image_url(image) for image in images]}
        response = await self.post("/v1/rewards", body | self.options | options)
        if response is None:
            self.num_failed += len(responses)
            return [None] * len(responses)
        rewards: list[float | None] = response["rewards"]
        self.num_failed += rewards.count(None)
        return rewards

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON of the server's response, or None if it fails."""
        end = time.monotonic() + self.deadline_s
        async with httpx.AsyncClient(headers=self._headers, timeout=self.deadline_s, verify=_certificates()) as client:
            while True:
                try:
                    response = await client.post(self.url + path, json=body)
                except httpx.HTTPError as error:
                    LOG.warning("%s%s: %s: no reward", self.url, path, error or type(error).__name__)
                    return None
                wait = retry_after_s(response.headers.get("Retry-After"), default=1.0)
                if response.status_code == 429 and time.monotonic() + wait < end:
                    await asyncio.sleep(wait)
                    continue
                if response.status_code in (401, 403, 404, 405):
                    raise EndpointError(f"{self.url}{path}: HTTP {response.status_code}: {response.text[:200]}")
                if response.status_code == 422 and any(re.search(rf"\b{name}\b", response.text) for name in self.options):
                    raise EndpointError(f"{self.url}{path}: refuses an option: {response.text[:200]}")
                if response.status_code != 200:
                    LOG.warning("%s%s: HTTP %d: %s: no reward", self.url, path, response.status_code, response.text[:200])
                    return None
                try:
                    return response.json()
                except ValueError:
                    LOG.warning("%s%s: not JSON: %s: no reward", self.url, path, response.text[:200])
                    return None
