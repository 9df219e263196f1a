"""A client of ``rewardlab serve``: a group of responses goes out with its images, a reward each comes back, or None."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from rewardlab.data.images import encode_png, to_data_url
from rewardlab.errors import EndpointError
from rewardlab.samplers.concurrency import retry_after_s

LOG = logging.getLogger(__name__)


def image_url(image: Any) -> str:
    """A reference that the server understands, of what datasets hold: a URL, upload id or ``media:NAME`` as it is, a path,
    encoded bytes, ``{"bytes", "path"}``, or a PIL image. Raises MediaError or OSError for a file that is none."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, str) and image.startswith(("data:", "upload:", "media:", "http://", "https://")):
        return image
    if isinstance(image, str | Path):
        image = Path(str(image).removeprefix("file://")).read_bytes()
    return to_data_url(image if isinstance(image, bytes) else encode_png(image.convert("RGB")))


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes longer than a request."""
    return httpx.create_ssl_context()


class RewardClient:
    """Asks one server. A full queue is waited for, as long as ``deadline_s`` allows; what fails is None, logged and counted.

    ``options`` go into every request: ``votes``, ``strategy``, ``anchor``, ``budget``, ``priority``. The key is ``api_key`` or
    the environment's ``REWARDLAB_API_KEY``. Raises EndpointError where the server refuses the key or has no such door: no
    reward would ever come.
    """

    def __init__(self, url: str, *, api_key: str = "", deadline_s: float = 600.0, **options: Any) -> None:
        self.url, self.deadline_s, self.options = url.rstrip("/"), deadline_s, options
        key = api_key or os.environ.get("REWARDLAB_API_KEY", "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.num_failed = 0

    async def rewards(
        self, question: str, responses: Sequence[str], images: Sequence[Any] = (), **options: Any
    ) -> list[float | None]:
        """One reward for each response, in -1..1, None where it could not be judged. ``options`` go before those of all."""
        body = {"question": question, "responses": list(responses), "images": [image_url(image) for image in images]}
        answer = await self.post("/v1/rewards", body | self.options | options)
        if answer is None:
            self.num_failed += len(responses)
            return [None] * len(responses)
        found: list[float | None] = answer["rewards"]
        self.num_failed += found.count(None)
        return found

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that the server answers, or None where it fails."""
        end = time.monotonic() + self.deadline_s
        async with httpx.AsyncClient(headers=self._headers, timeout=self.deadline_s, verify=_certificates()) as client:
            while True:
                try:
                    answer = await client.post(self.url + path, json=body)
                except httpx.HTTPError as error:
                    LOG.warning("%s%s: %s: no reward", self.url, path, error or type(error).__name__)
                    return None
                wait = retry_after_s(answer.headers.get("Retry-After"), default=1.0)
                if answer.status_code == 429 and time.monotonic() + wait < end:
                    await asyncio.sleep(wait)
                    continue
                if answer.status_code in (401, 403, 404, 405):
                    raise EndpointError(f"{self.url}{path}: HTTP {answer.status_code}: {answer.text[:200]}")
                if answer.status_code != 200:
                    LOG.warning("%s%s: HTTP %d: %s: no reward", self.url, path, answer.status_code, answer.text[:200])
                    return None
                try:
                    return answer.json()
                except ValueError:
                    LOG.warning("%s%s: not JSON: %s: no reward", self.url, path, answer.text[:200])
                    return None
