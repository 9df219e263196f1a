"""A client of ``rewardlab serve``: it sends groups of responses with their images, and returns a reward for each, or None."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import random
import re
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from rewardlab.data.images import encode_png, to_data_url
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.samplers.concurrency import retry_after_s

LOG = logging.getLogger(__name__)
# A full queue, a proxy without a server behind it, an engine or a server that starts again, a deadline on the server.
PASSING = (429, 502, 503, 504)
UNJUDGED, DRAWS = '"unjudged"', 3  # the judge gave no verdict; it is asked so often
MAX_TIMEOUT_S = 3600.0  # that a request may ask for
LONGEST_WAIT_S = 5.0  # between two tries to connect
_TOLD = set[tuple[str, str]]()  # servers and signs that this process has warned of


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


def group_key(question: str) -> str:
    """Return a word that responses to one question share, by which a balancer sends them to one of several servers: they wait
    there for each other."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@cache
def _certificates() -> ssl.SSLContext:
    """Return the system's certificates, read once: that takes longer than a request."""
    return httpx.create_ssl_context()


class RewardClient:
    """A client of one server. It waits for a server that is full, starts again or cannot be reached, as long as ``deadline_s``
    allows; a failure is None, logged, counted.

    ``options`` go into every request: ``votes``, ``strategy``, ``anchor``, ``budget``, ``priority``. The key is ``api_key`` or
    the environment's ``REWARDLAB_API_KEY``, the deadline 600 s or ``REWARDLAB_DEADLINE_S``. Raise EndpointError if the server
    refuses the key or one of the options, or has no such path: no reward would ever come. Raise ConfigError for a ``url`` or a
    deadline that is none.

    ``signs`` are those that the server last saw in this key's answers, that a policy pleases the judge rather than gets better;
    each is logged once.
    """

    def __init__(self, url: str, *, api_key: str = "", deadline_s: float | None = None, **options: Any) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r}: expected the address of a server, such as http://localhost:8000")
        self.url, self.options = url.rstrip("/"), options
        self.deadline_s = _deadline_s() if deadline_s is None else deadline_s
        key = api_key or os.environ.get("REWARDLAB_API_KEY", "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.num_failed = 0
        self.signs: frozenset[str] = frozenset()

    async def rewards(
        self, question: str, responses: Sequence[str], images: Sequence[Any] = (), **options: Any
    ) -> list[float | None]:
        """Return a reward for each response, in -1..1, None if it was not judged. ``options`` override those of the client."""
        body: dict[str, Any] = {"question": question, "responses": list(responses), "images": list(map(image_url, images))}
        body["timeout_s"] = min(max(1.0, self.deadline_s), MAX_TIMEOUT_S)
        response = await self.post("/v1/rewards", body | self.options | options)
        if response is None:
            self.num_failed += len(responses)
            return [None] * len(responses)
        rewards: list[float | None] = response["rewards"]
        self.num_failed += rewards.count(None)
        return rewards

    async def post(self, path: str, body: Any, *, group: str = "") -> Any:
        """Return the JSON of the server's response, or None if it fails. ``group`` is the :func:`group_key` of a sample that is
        sent alone."""
        headers = self._headers | ({"X-Group-Key": group} if group else {})
        end, tries = time.monotonic() + self.deadline_s, 0
        async with httpx.AsyncClient(headers=headers, timeout=self.deadline_s, verify=_certificates()) as client:
            while True:
                try:
                    answer = self._read(path, await client.post(self.url + path, json=body))
                except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                    answer = _Failure(str(error))
                except httpx.HTTPError as error:
                    answer = _Failure(str(error) or type(error).__name__, wait_s=min(LONGEST_WAIT_S, 0.25 * 2**tries))
                if not isinstance(answer, _Failure):
                    return answer
                tries += 1
                wait_s = (answer.wait_s or 0.0) * random.uniform(1.0, 1.25)  # not all of a run's requests at once
                if answer.wait_s is None or tries >= answer.most_tries or time.monotonic() + wait_s >= end:
                    LOG.warning("%s%s: %s: no reward", self.url, path, answer.sentence)
                    return None
                LOG.info("%s%s: %s: again in %.1f s", self.url, path, answer.sentence, wait_s)
                await asyncio.sleep(wait_s)

    def _read(self, path: str, response: httpx.Response) -> Any:
        """Return the JSON of a response, or a _Failure. Raise EndpointError where no reward would ever come."""
        code, text = response.status_code, response.text[:200]
        if code in (401, 403, 404, 405):
            raise EndpointError(f"{self.url}{path}: HTTP {code}: {text}")
        if code == 422 and any(re.search(rf"\b{name}\b", response.text) for name in self.options):
            raise EndpointError(f"{self.url}{path}: refuses an option: {text}")
        if code in PASSING:
            most_tries = DRAWS if UNJUDGED in response.text else math.inf
            return _Failure(f"HTTP {code}: {text}", retry_after_s(response.headers.get("Retry-After"), default=1.0), most_tries)
        if code != 200:
            return _Failure(f"HTTP {code}: {text}")
        self._note_signs(response.headers.get("X-Policy-Signs", ""))
        try:
            return response.json()
        except ValueError:
            return _Failure(f"not JSON: {text}")

    def _note_signs(self, names: str) -> None:
        self.signs = frozenset(names.split(", ")) if names else frozenset()
        for name in sorted(self.signs):
            if (self.url, name) not in _TOLD:
                _TOLD.add((self.url, name))
                LOG.warning(
                    "%s: sign %r: the policy may please the judge rather than get better; see /v1/status or /ui", self.url, name
                )


@dataclass(frozen=True)
class _Failure:
    """Why there is no answer, after how many seconds to ask again (None: never), and how often at most."""

    sentence: str
    wait_s: float | None = None
    most_tries: float = math.inf


def _deadline_s() -> float:
    text = os.environ.get("REWARDLAB_DEADLINE_S", "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"REWARDLAB_DEADLINE_S is {text!r}; expected seconds, such as 600")
    return seconds
