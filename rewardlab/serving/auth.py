"""API keys: several, stored as hashes, compared in constant time, each with limits and a weight of its own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from rewardlab.errors import ConfigError
from rewardlab.serving.errors import error_response
from rewardlab.serving.request_context import TENANT

PUBLIC_PATHS = ("/", "/health", "/ready", "/ui")  # for monitoring, and a page that asks for the key; they reveal nothing
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")


@dataclass(frozen=True)
class Key:
    """The SHA-256 of a key, and what it may do.

    A minute it may send ``per_minute`` requests and have ``samples_per_minute`` drawn and ``tokens_per_minute`` read and
    written, at once as many as a tenth of a minute allows; ``max_bytes`` bounds a request. While several keys wait, the engine
    is shared among them by ``weight``.
    """

    digest: bytes
    per_minute: float = math.inf
    samples_per_minute: float = math.inf
    tokens_per_minute: float = math.inf
    max_bytes: float = math.inf
    weight: float = 1.0

    @staticmethod
    def of(key: str, **limits: float) -> Key:
        return Key(hashlib.sha256(key.encode()).digest(), **limits)

    @property
    def tenant(self) -> str:
        """Return the name of the key: 16 hex digits, from which nobody learns it."""
        return self.digest.hex()[:16]


LIMITS = tuple(field.name for field in fields(Key) if field.name != "digest")


def read_keys(path: Path, *, per_minute: float = math.inf) -> list[Key]:
    """Read a key a line, plain or as ``sha256:HEX``, and after it its limits: ``per_minute=600 weight=2``, by the names of
    :class:`Key`.

    ``#`` begins a comment. Raises ConfigError for a file that cannot be read or has no key, and for a limit that is none.
    """
    try:
        lines = [line.partition("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
        keys = [_key(*line, per_minute=per_minute) for line in lines if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--keys {path}: cannot be read ({error})") from error
    except ValueError as error:
        expected = ", ".join(f"{name}=N" for name in LIMITS)
        raise ConfigError(f"--keys {path}: {error}; expected KEY or sha256:HEX, then any of {expected}") from error
    if not keys:
        raise ConfigError(f"--keys {path}: holds no key; leave the option out to let everybody ask")
    return keys


def _key(key: str, *limits: str, per_minute: float) -> Key:
    values = {"per_minute": per_minute} | {name: float(value) for name, _, value in (text.partition("=") for text in limits)}
    if unknown := set(values) - set(LIMITS):
        raise ValueError(f"unknown limit {min(unknown)!r}")
    if not all(value > 0 for value in values.values()):
        raise ValueError("a limit is not above 0")
    digest = _HASH.fullmatch(key)
    if key.lower().startswith("sha256:") and not digest:  # it must not become a key itself: whoever reads the file would be in
        raise ValueError("a hash is not 64 hex digits")
    return Key(bytes.fromhex(digest[1]), **values) if digest else Key.of(key, **values)


class Bucket:
    """A token bucket: it fills by ``per_minute``, up to a tenth of that. What is taken beyond its content is a debt."""

    def __init__(self, per_minute: float) -> None:
        self._rate, self._size = per_minute / 60, max(1.0, per_minute / 10)
        self._level, self._then = self._size, time.monotonic()

    def wait_s(self) -> float:
        """Return the seconds until there is one in it."""
        if math.isinf(self._rate):
            return 0.0
        now = time.monotonic()
        self._level, self._then = min(self._size, self._level + (now - self._then) * self._rate), now
        return max(0.0, (1 - self._level) / self._rate)

    def take(self, num: float) -> None:
        if not math.isinf(self._rate):
            self._level -= num


class Account:
    """What a key has left of its limits."""

    def __init__(self, key: Key) -> None:
        self.requests, self.samples = Bucket(key.per_minute), Bucket(key.samples_per_minute)
        self.tokens = Bucket(key.tokens_per_minute)

    def wait_s(self) -> float:
        """Return 0 and take a request, or return the seconds until there is one, and no debt of samples or tokens."""
        if wait := max(bucket.wait_s() for bucket in (self.requests, self.samples, self.tokens)):
            return wait
        self.requests.take(1)
        return 0.0


class Keys:
    """The accepted keys; without any, every request is, and all are one tenant, ""."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = list(keys)
        self._accounts = {key.tenant: Account(key) for key in self._keys}
        self._weights = {key.tenant: key.weight for key in self._keys}

    def __len__(self) -> int:
        return len(self._keys)

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
        """Return 0 and take one request from the key's limits, or return the seconds until it may ask again."""
        account = self._accounts.get(key.tenant)
        return account.wait_s() if account else 0.0

    def charge(self, tenant: str, *, samples: float = 0, tokens: float = 0) -> None:
        """Take work from a tenant's limits when it is known; a debt keeps its next requests waiting."""
        if account := self._accounts.get(tenant):
            account.samples.take(samples)
            account.tokens.take(tokens)

    def weight(self, tenant: str) -> float:
        """Return the weight of a tenant's share of the engine."""
        return self._weights.get(tenant, 1.0)


class ApiKeyMiddleware:
    """ASGI middleware: 401 without a good key, 429 beyond its limits; else the request is the key's (``TENANT``)."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        header = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        key = self._keys.find(header)
        if key is None:
            sentence = "no valid API key; send Authorization: Bearer KEY"
            answer = error_response(scope["path"], 401, sentence, headers={"WWW-Authenticate": "Bearer"})
        elif wait := self._keys.wait_s(key):
            headers = {"Retry-After": str(max(1, math.ceil(wait)))}
            sentence = "this key has used what it may use in a minute"
            answer = error_response(scope["path"], 429, sentence, status="rate", headers=headers)
        else:
            token = TENANT.set(key.tenant)
            try:
                await self._app({**scope, "max_bytes": key.max_bytes}, receive, send)
            finally:
                TENANT.reset(token)
            return
        await answer(scope, receive, send)
