"""Addresses of servers, and media behind URLs: only URLs that begin with an allowed one are fetched, from the same host and
port, without redirects. So no reference leads to a private address that was not allowed."""

from __future__ import annotations

import re
import ssl
import time
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from rewardlab.errors import ConfigError, MediaError

MAX_IMAGE_BYTES = 20_000_000
MAX_VIDEO_BYTES = 100_000_000
FETCH_TIMEOUT_S = 20.0


_USER = re.compile(r"(?<=://)[^/\s,;]*@")
_SECRET_OPTION = re.compile(r"(--[\w-]*(?:token|key|password|secret)[ =]+)\S+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Return a text with *** for the user and password of a URL, and for the value of an option such as ``--hf-token``."""
    return _SECRET_OPTION.sub(r"\1***", _USER.sub("***@", text))


@cache
def system_certificates() -> ssl.SSLContext:
    """Return the system's certificates, read once because that takes longer than a request."""
    return httpx.create_ssl_context()


def parse_address(url: str) -> httpx.URL:
    """Return the address of a server. Raise ConfigError unless it is http or https, with a valid host and port, and without
    query."""
    try:
        address = httpx.URL(url)
        is_one = address.scheme in ("http", "https") and bool(address.host) and 0 < (address.port or 80) < 2**16
    except (httpx.InvalidURL, ValueError, TypeError):
        is_one = False
    if not is_one or "?" in url or "#" in url:
        raise ConfigError(f"{url!r} not an address; expected http://HOST:PORT or https://HOST, optionally with a path")
    return address


class AllowedUrls:
    """Prefixes of URLs that may be fetched. Raises ConfigError for a prefix without host, with a user, a query or a fragment,
    or without a final slash."""

    def __init__(self, beginnings: Sequence[str] = ()) -> None:
        for url in beginnings:
            if not _is_beginning(url):
                raise ConfigError(
                    f"{url}: expected a URL that ends with /, as https://images.host/dataset/, without user, query and fragment"
                )
        self._allowed = tuple(beginnings)

    def allows(self, url: str) -> bool:
        """Return whether a URL begins with an allowed prefix, and its path does not leave it."""
        try:
            parts = urlsplit(url)
            if "@" in parts.netloc or "\\" in url or _climbs(parts.path):
                return False
            prefixes = map(urlsplit, self._allowed)
            return any(_origin(parts) == _origin(prefix) and parts.path.startswith(prefix.path) for prefix in prefixes)
        except ValueError:  # an invalid port
            return False


def _climbs(path: str) -> bool:
    """Return whether a server may read a path as one with ``..``: however often it is encoded, with parameters (``..;``), with
    one character for two dots, or with bytes that are no UTF-8."""
    for _ in range(8):
        path, before = unquote(path), path
        if path == before:
            break
    else:
        return True
    path = unicodedata.normalize("NFKC", path)
    return "\ufffd" in path or any(part.partition(";")[0].strip() == ".." for part in re.split(r"[/\\]", path))


def _is_beginning(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or address
        return False
    return has_host and url.endswith("/") and "@" not in parts.netloc and not set(url) & set("?#\\")


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    scheme, port = url.scheme, url.port
    return scheme, url.hostname, port or {"http": 80, "https": 443}.get(scheme)


class RemoteMedia:
    """An image or video behind a URL whose host has answered; its body is not read yet. ``num_bytes`` is the length that the
    host announces, None if it does not. Redirects are not followed. Raises MediaError."""

    def __init__(self, url: str, where: str) -> None:
        self._where, self._client = where, httpx.Client(follow_redirects=False, timeout=FETCH_TIMEOUT_S)
        try:
            self._response = self._client.send(self._client.build_request("GET", url), stream=True)
            if self._response.status_code != 200:
                raise MediaError(f"{where}: its host returned HTTP {self._response.status_code}; redirects are not followed")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._client.close()
            raise self._failure(error) from error
        except MediaError:
            self.close()
            raise
        length, is_plain = self._response.headers.get("Content-Length", ""), "Content-Encoding" not in self._response.headers
        self.num_bytes = int(length) if is_plain and length.isdecimal() else None

    def read(self, max_bytes: int) -> bytes:
        """Return the body. Raises MediaError, also for more than ``max_bytes``."""
        body, end = bytearray(), time.monotonic() + FETCH_TIMEOUT_S
        try:
            for chunk in self._response.iter_bytes():
                body += chunk
                if time.monotonic() > end:
                    raise MediaError(f"{self._where}: not received within {FETCH_TIMEOUT_S:g} s")
                if len(body) > max_bytes:
                    raise MediaError(f"{self._where}: more than {max_bytes:,} bytes; resize it first")
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._failure(error) from error
        return bytes(body)

    def close(self) -> None:
        self._response.close()
        self._client.close()

    def _failure(self, error: Exception) -> MediaError:
        return MediaError(f"{self._where}: cannot be fetched ({type(error).__name__})")


def fetch_media(url: str, where: str, max_bytes: int) -> bytes:
    """Return the body behind a URL. Redirects are not followed. Raises MediaError."""
    with closing(RemoteMedia(url, where)) as media:
        return media.read(max_bytes)
