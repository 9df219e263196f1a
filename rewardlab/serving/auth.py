"""API keys: stored as hashes, compared in constant time, each with its own limits and weight."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rewardlab.errors import ConfigError

_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_COMMENT = re.compile(r"(?:^|\s)#.*")  # a key may contain the sign
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Key:
    """The SHA-256 of a key, and its limits.

    Per minute the key has ``per_minute`` requests, ``samples_per_minute`` samples and ``tokens_per_minute`` tokens read and
    written, a tenth of them at once; ``max_bytes`` bounds a request. While several keys wait, they share the engine by
    ``weight``. Keys of one ``name`` are one tenant, as an old key and its replacement.
    """

    digest: bytes
    per_minute: float = math.inf
    samples_per_minute: float = math.inf
    tokens_per_minute: float = math.inf
    max_bytes: float = math.inf
    weight: float = 1.0
    name: str = ""

    @staticmethod
    def of(key: str, **options: Any) -> Key:
        return Key(hashlib.sha256(key.encode()).digest(), **options)

    def limits_in_words(self) -> str:
        """Return the limits of a minute, such as "60 requests a minute"."""
        units = {"requests": self.per_minute, "samples": self.samples_per_minute, "tokens": self.tokens_per_minute}
        return ", ".join(f"{limit:,.0f} {name} a minute" for name, limit in units.items() if math.isfinite(limit))

    @property
    def tenant(self) -> str:
        """Return the name of the key in logs and metrics, by default 16 hex digits of its hash."""
        return self.name or self.digest.hex()[:16]


LIMITS = tuple(field.name for field in fields(Key) if field.type == "float")


def read_keys(path: Path, *, per_minute: float = math.inf) -> list[Key]:
    """Read one key per line, plain or as ``sha256:HEX``, followed by its name and limits as :class:`Key` calls them, such as
    ``name=anna per_minute=600 weight=2``. A word that begins with ``#`` begins a comment.

    Raise ConfigError for a file that cannot be read or has no key, a line without a key, the hash of an empty one, which any
    request would have, and for an unknown or malformed limit.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # a mark of the byte order is no part of a key
        lines = [_COMMENT.sub("", line).split() for line in text.splitlines()]
        keys = [_key(*line, per_minute=per_minute) for line in lines if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--keys {path}: cannot be read ({error})") from error
    except ValueError as error:
        expected = ", ".join(["name=WORD", *(f"{name}=N" for name in LIMITS)])
        raise ConfigError(f"--keys {path}: {error}; expected KEY or sha256:HEX, then any of {expected}") from error
    if not keys:
        raise ConfigError(f"--keys {path}: contains no key; to serve without keys, leave out --keys")
    return keys


def _key(key: str, *options: str, per_minute: float) -> Key:
    if key.partition("=")[0] in ("name", *LIMITS):
        raise ValueError(f"a line begins with {key!r}, not with a key")
    given: dict[str, str] = {}
    for text in options:
        name, _, value = text.partition("=")
        if name in given:
            raise ValueError(f"{name!r} appears twice")
        given[name] = value
    tenant = given.pop("name", None)
    if tenant is not None and not _NAME.fullmatch(tenant):
        raise ValueError(f"{tenant!r} is not a valid name: letters, digits, '.', '_' and '-', at most 64")
    values = {"per_minute": per_minute} | {limit: float(value) for limit, value in given.items()}
    if unknown := set(values) - set(LIMITS):
        raise ValueError(f"unknown limit {min(unknown)!r}")
    if not all(value > 0 for value in values.values()):
        raise ValueError("a limit is not above 0")
    if math.isinf(values.get("weight", 1.0)):
        raise ValueError("a weight is infinite")
    digest = _HASH.fullmatch(key)
    if key.lower().startswith("sha256:") and not digest:  # else the text itself would be a valid key
        raise ValueError("a hash is not 64 hex digits")
    if digest and bytes.fromhex(digest[1]) == key_digest(""):
        raise ValueError("a hash is of an empty key")
    return Key(bytes.fromhex(digest[1]) if digest else Key.of(key).digest, **values, name=tenant or "")


class Bucket:
    """A token bucket: it fills by ``per_minute``, up to a tenth of that. Taking more than it contains leaves a debt."""

    def __init__(self, per_minute: float) -> None:
        self._rate, self._size = per_minute / 60, max(1.0, per_minute / 10)
        self._level, self._then = self._size, time.monotonic()

    def wait_s(self) -> float:
        """Return the seconds until it contains one token."""
        if math.isinf(self._rate):
            return 0.0
        self._fill()
        return max(0.0, (1 - self._level) / self._rate)

    def take(self, num: float) -> None:
        if not math.isinf(self._rate):
            self._fill()  # first: the time before does not pay a debt
            self._level -= num

    def _fill(self) -> None:
        now = time.monotonic()
        self._level, self._then = min(self._size, self._level + (now - self._then) * self._rate), now


class Account:
    """The remaining limits of a key."""

    def __init__(self, key: Key) -> None:
        self.requests, self.samples = Bucket(key.per_minute), Bucket(key.samples_per_minute)
        self.tokens = Bucket(key.tokens_per_minute)

    def wait_s(self) -> float:
        """Return 0 and take a request, or return the seconds until a request is allowed."""
        if wait := max(bucket.wait_s() for bucket in (self.requests, self.samples, self.tokens)):
            return wait
        self.requests.take(1)
        return 0.0


class Keys:
    """The accepted keys. Without keys every request is accepted, as of one tenant, ""."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys: list[Key] = []
        self._accounts: dict[str, Account] = {}
        self._weights: dict[str, float] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> None:
        """Accept these keys from now on; a key that was accepted before keeps its account."""
        known, self._keys = set(self._keys), list(keys)
        kept = {key.tenant: self._accounts[key.tenant] for key in self._keys if key in known}
        self._accounts = {key.tenant: Account(key) for key in self._keys} | kept
        self._weights = {key.tenant: key.weight for key in self._keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, header: str) -> Key | None:
        """Return the key of an Authorization header if it is accepted. All keys are compared, in constant time."""
        digest = key_digest(header)
        match = None
        for candidate in self._keys:
            if hmac.compare_digest(candidate.digest, digest):
                match = candidate
        return match if self._keys else Key(b"")

    def wait_s(self, key: Key) -> float:
        """Return 0 and take one request from the key's limits, or return the seconds until the next is allowed."""
        account = self._accounts.get(key.tenant)
        return account.wait_s() if account else 0.0

    def charge(self, tenant: str, *, samples: float = 0, tokens: float = 0) -> None:
        """Take finished work from a tenant's limits; a debt delays its next requests."""
        if account := self._accounts.get(tenant):
            account.samples.take(samples)
            account.tokens.take(tokens)

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)


def key_digest(header: str) -> bytes:
    """Return the SHA-256 of the key in an Authorization header, of nothing without a key.

    Clients that cannot set a header may put the key into their URL, ``http://x:KEY@host``: it becomes the password of Basic.
    """
    scheme, _, value = header.partition(" ")
    key = _utf8(value) if scheme.lower() == "bearer" else b""
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            key = base64.b64decode(value).partition(b":")[2]
    return hashlib.sha256(key).digest()


def _utf8(value: str) -> bytes:
    """Return a header's value, which a server reads as Latin-1, in UTF-8: as it was sent if that was UTF-8."""
    with contextlib.suppress(ValueError):
        return value.encode("latin-1").decode().encode()
    return value.encode()


LOG = logging.getLogger(__name__)


class KeysFile:
    """The keys of a file, read again when it has changed, so that keys are added and revoked while the server runs. A file that
    can no longer be read leaves the keys as they were, with an error in the log.

    Raise what :func:`read_keys` raises if the file cannot be read at first.
    """

    def __init__(self, path: Path, *, per_minute: float = math.inf, recheck_s: float = 1.0) -> None:
        self._path, self._per_minute, self._recheck_s = path, per_minute, recheck_s
        self._stamp, self._checked = file_stamp(path), time.monotonic()
        self.keys = Keys(read_keys(path, per_minute=per_minute))

    def update(self) -> None:
        """Read the file again if it has changed; it is checked at most every ``recheck_s``."""
        now = time.monotonic()
        if now - self._checked < self._recheck_s:
            return
        self._checked = now
        if (stamp := file_stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = read_keys(self._path, per_minute=self._per_minute)
        except ConfigError as error:
            LOG.error("%s; the earlier keys stay valid", error)
            return
        self.keys.replace(keys)
        LOG.warning("--keys %s: read again, %d keys", self._path, len(keys))


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Return a value that changes with a file; a mounted secret is a link to another file after a change."""
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0)
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
