"""API keys: several, stored as hashes, compared in constant time, each with its own rate limit."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rewardlab.errors import ConfigError

PUBLIC_PATHS = ("/", "/health", "/ready", "/ui")  # for monitoring, and a page that asks for the key; they reveal nothing
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")


@dataclass(frozen=True)
class Key:
    """The SHA-256 of a key, how many requests it may send a minute (at once as many as a tenth of a minute allows), and how
    many bytes in each."""

    digest: bytes
    per_minute: float = math.inf
    max_bytes: float = math.inf

    @staticmethod
    def of(key: str, **limits: float) -> Key:
        return Key(hashlib.sha256(key.encode()).digest(), **limits)


def read_keys(path: Path, *, per_minute: float = math.inf) -> list[Key]:
    """Read a key a line, plain or as ``sha256:HEX``, and after it its limits: ``per_minute=600 max_bytes=2000000``.

    ``#`` begins a comment. Raises ConfigError for a file that cannot be read or has no key, and for a limit that is none.
    """
    try:
        lines = [line.partition("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
        keys = [_key(*line, per_minute=per_minute) for line in lines if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--keys {path}: cannot be read ({error})") from error
    except ValueError as error:
        raise ConfigError(f"--keys {path}: {error}; expected KEY or sha256:HEX, per_minute=N, max_bytes=N") from error
    if not keys:
        raise ConfigError(f"--keys {path}: holds no key; leave the option out to let everybody ask")
    return keys


def _key(key: str, *limits: str, per_minute: float) -> Key:
    values = {"per_minute": per_minute} | {name: float(value) for name, _, value in (text.partition("=") for text in limits)}
    if unknown := set(values) - {"per_minute", "max_bytes"}:
        raise ValueError(f"unknown limit {min(unknown)!r}")
    if not all(value > 0 for value in values.values()):
        raise ValueError("a limit is not above 0")
    digest = _HASH.fullmatch(key)
    if key.lower().startswith("sha256:") and not digest:  # it must not become a key itself: whoever reads the file would be in
        raise ValueError("a hash is not 64 hex digits")
    return Key(bytes.fromhex(digest[1]), **values) if digest else Key.of(key, **values)


class Keys:
    """The accepted keys; without any, every request is. Each has its own rate limit (token bucket)."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = list(keys)
        self._buckets: dict[bytes, tuple[float, float]] = {}  # tokens, when

    def find(self, header: str) -> Key | None:
        """Return the key of an Authorization header if it is accepted. Every key is compared, whichever fits.

        Clients that cannot set a header may have the key in their URL, ``http://x:KEY@host``, which becomes the
        password of Basic.
        """
        scheme, _, value = header.partition(" ")
        key = value.encode() if scheme.lower() == "bearer" else b""
        if scheme.lower() == "basic":
            with contextlib.suppress(ValueError):
                key = base64.b64decode(value).partition(b":")[2]
        digest = hashlib.sha256(key).digest()
        match = None
        for candidate in self._keys:
            if hmac.compare_digest(candidate.digest, digest):
                match = candidate
        return match if self._keys else Key(b"")

    def wait_s(self, key: Key) -> float:
        """Return 0 and take one request from the key's rate, or return the seconds until there is one."""
        rate, burst, now = key.per_minute / 60, max(1.0, key.per_minute / 10), time.monotonic()
        if math.isinf(rate):
            return 0.0
        tokens, then = self._buckets.get(key.digest, (burst, now))
        tokens = min(burst, tokens + (now - then) * rate)
        if tokens < 1:
            self._buckets[key.digest] = (tokens, now)
            return (1 - tokens) / rate
        self._buckets[key.digest] = (tokens - 1, now)
        return 0.0


class ApiKeyMiddleware:
    """ASGI middleware: 401 without a good key, 429 beyond its rate."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        header = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        key = self._keys.find(header)
        if key is None:
            answer = JSONResponse(
                {"error": "no valid API key; send Authorization: Bearer KEY"}, 401, {"WWW-Authenticate": "Bearer"}
            )
        elif wait := self._keys.wait_s(key):
            answer = JSONResponse({"error": "this key asks too often"}, 429, {"Retry-After": str(max(1, round(wait)))})
        else:
            await self._app({**scope, "max_bytes": key.max_bytes}, receive, send)
            return
        await answer(scope, receive, send)
