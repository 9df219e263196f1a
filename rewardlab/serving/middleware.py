"""Middleware between socket and application, in the order in which a request passes it: its record and log line, the browser
guard, keys, the cancellation of requests whose client disconnects, the bytes of the body, the judge that is bound to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardlab.errors import ConfigError
from rewardlab.serving.admission import Admission, using_share
from rewardlab.serving.auth import Keys
from rewardlab.serving.errors import OverloadedError, RequestTooLargeError, error_response
from rewardlab.serving.judge_versions import JudgeVersions
from rewardlab.serving.pages import DOCS_PATHS, PUBLIC_FOLDER
from rewardlab.serving.request_record import (
    REQUEST,
    RequestRecord,
    ServingHistograms,
    current_request,
    end_span,
    request_span,
    route_path,
    tenant_of_request,
)

LOG = logging.getLogger("rewardlab.requests")
FREQUENT_PATHS = ("/health", "/ready", "/metrics")  # requested every few seconds by monitoring; logged if they fail
CLIENT_GONE = 499  # nginx's number for a client that did not wait for the answer
MOST_OF_A_KEY = 255  # characters of an Idempotency-Key that count
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class RequestLog:
    """ASGI middleware: give each request an id, the client's ``X-Request-ID`` if that is a short plain word, send it
    back, and log and measure the request when it is answered."""

    def __init__(self, app: ASGIApp, histograms: ServingHistograms) -> None:
        self._app, self._histograms = app, histograms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_id_of(scope), _header(scope, b"idempotency-key")[:MOST_OF_A_KEY])
        REQUEST.set(record)  # a request on a reused connection starts in the context of the one before
        start, status = time.perf_counter(), CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                headers["X-Request-ID"] = record.id
                if weights := record.weights - {""}:
                    headers["X-Judge-Weights"] = ", ".join(sorted(weights))
            await send(message)

        with request_span(scope) as span:
            try:
                await self._app(scope, receive, send_with_id)
            except Exception:  # the boundary: a failed request, whoever answers it
                status = 500
                raise
            finally:
                seconds, path = time.perf_counter() - start, path_of(scope)
                self._histograms.add_request(path, status, record.tenant, seconds, record.num_tokens)
                end_span(span, scope["method"], path, status, record)
                _log(scope, path, status, seconds, record)


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


def _id_of(scope: Scope) -> str:
    given = _header(scope, b"x-request-id")
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def path_of(scope: MutableMapping[str, Any]) -> str:
    """Return the path of the route, or "other" for an unknown path."""
    path = route_path(scope)
    known = any(getattr(route, "path", None) == path for route in scope["app"].routes)
    return path if known else "other"


def _log(scope: Scope, path: str, status: int, seconds: float, record: RequestRecord) -> None:
    level = logging.DEBUG if path in FREQUENT_PATHS and status < 500 else logging.INFO
    fields = {
        "id": record.id,
        "client": quote((scope.get("client") or [""])[0][:200], safe=":"),
        "key": record.tenant,
        "method": scope["method"],
        "path": quote(scope["path"][:200]),  # one line, whatever a client sends
        "status": status,
        "ms": round(1000 * seconds, 1),
        "queue_ms": round(1000 * record.queue_s, 1),
        "tokens": record.num_tokens,
    }
    LOG.log(level, "%s", " ".join(f"{name}={value}" for name, value in fields.items()), extra={"fields": fields})


LOOPBACK = ("localhost", "127.0.0.1", "::1")
PROBED = ("/health", "/ready")  # a kubelet asks by the pod's address
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def accepted_hosts(host: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the host names that a server answers to: ``names`` and those of this machine, which no other site can have. () is
    any name: for a server that listens on other interfaces, too, and without ``names``. Raise ConfigError for a name with a
    scheme or a port, which no request has."""
    if wrong := [name for name in names if "/" in name or name.count(":") == 1]:
        raise ConfigError(f"--allowed-host {wrong[0]}: expected a name without scheme and port, such as judge.example.org")
    return (*names, *LOOPBACK) if names or host in LOOPBACK else ()


class BrowserGuard:
    """ASGI middleware: 421 for a Host that is not among ``allowed_hosts`` (if there are any, against DNS rebinding), 403 for
    writes by a page of another origin, and headers against framing and content sniffing. The server sends no CORS header, so
    that no other page can read its answers."""

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str] = ()) -> None:
        self._app, self._allowed = app, {host.lower().strip("[]") for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        name = _name_of(host := headers.get("host", ""))
        if self._allowed and route_path(scope) not in PROBED and name not in self._allowed:
            sentence = f"this server does not answer to the name {(name or host)[:80]!r}; --allowed-host adds one"
            await error_response(scope["path"], 421, sentence, status="host")(scope, receive, send_with_headers)
        elif scope["method"] not in SAFE_METHODS and _is_foreign(headers):
            sentence = (
                "the request was sent by a page of another site, which is not allowed; if the page is this server's own, its "
                "proxy must pass on Host with the port"
            )
            await error_response(scope["path"], 403, sentence, status="origin")(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)


def _name_of(host: str) -> str | None:
    try:
        return None if "@" in host else urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser declares the request as sent by a page of another origin. Programs declare nothing."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site not in ("same-origin", "none")
    if (origin := headers.get("origin")) is None:
        return False
    return origin.partition("://")[2].lower() != headers.get("host", "").lower()


# For monitoring, and pages that ask for the key; they reveal nothing.
PUBLIC_PATHS = ("/", "/health", "/ready", "/ui", *DOCS_PATHS)


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


class ApiKeyMiddleware:
    """ASGI middleware: 401 without a good key, 429 beyond its limits; else the request is the key's (:class:`RequestRecord`).
    ``update`` is called before a key is looked for, to have the keys as they are now.

    Public paths are answered to everybody; ``scope["has_key"]`` says whether a key came, or none is needed.
    """

    def __init__(self, app: ASGIApp, keys: Keys, update: Callable[[], None] | None = None) -> None:
        self._app, self._keys, self._update = app, keys, update

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._update:
            self._update()
        key = self._keys.find(header := _header(scope, b"authorization"))
        if _is_public(route_path(scope)):
            await self._app({**scope, "has_key": key is not None}, receive, send)
            return
        record = current_request()
        if key is None:
            sentence = "no valid API key; send Authorization: Bearer KEY"
            answer = error_response(scope["path"], 401, sentence, headers={"WWW-Authenticate": "Bearer"})
        elif wait := self._keys.wait_s(key):
            headers = {"Retry-After": str(max(1, math.ceil(wait)))}
            sentence = f"this key has used what it may use now ({key.limits_in_words()}; a tenth of that at once)"
            record.tenant = key.tenant
            answer = error_response(scope["path"], 429, sentence, status="rate", headers=headers)
        else:
            record.tenant, record.authorization = key.tenant, header
            await self._app({**scope, "max_bytes": key.max_bytes}, receive, send)
            return
        await answer(scope, receive, send)


class CancelOnDisconnect:
    """ASGI middleware: cancel a request whose client disconnects, so that it leaves the queue."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        disconnected, body_complete = asyncio.Event(), asyncio.Event()

        async def receive_body() -> Message:
            if body_complete.is_set():  # only a disconnect can follow
                await disconnected.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect":
                disconnected.set()
            elif not message.get("more_body", False):
                body_complete.set()
            return message

        async def await_disconnect() -> None:
            await body_complete.wait()
            while not disconnected.is_set():
                if (await receive())["type"] == "http.disconnect":
                    disconnected.set()

        response, watcher = (
            asyncio.ensure_future(self._app(scope, receive_body, send)),
            asyncio.ensure_future(await_disconnect()),
        )
        disconnect = asyncio.ensure_future(disconnected.wait())
        try:
            await asyncio.wait({response, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not response.done():
                response.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClientDisconnect):  # the latter: while its body was read
                await response
        finally:
            for task in (response, watcher, disconnect):
                task.cancel()


class BodyLimit:
    """ASGI middleware: answer 413 to a body beyond ``body_bytes``, or beyond the ``max_bytes`` of its key, and count the bytes
    of a request until it is answered."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, most = 0, self._admission.limits.body_bytes
        of_key = " of this key" if scope.get("max_bytes", most) < most else ""
        most = min(most, scope.get("max_bytes", most))
        share = self._admission.open(tenant_of_request())

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(
                    413, f"the request is larger than the {most:,.0f} bytes that are taken{of_key}; send less at a time"
                )
            try:
                share.take_bytes(len(message.get("body", b"")))
            except RequestTooLargeError as error:
                raise HTTPException(413, str(error)) from error
            except OverloadedError as error:  # code that reads a body passes on HTTPException alone
                headers = {"Retry-After": str(error.retry_after_s)}
                raise HTTPException(429, str(error), headers=headers) from error
            return message

        with using_share(share):
            await self._app(scope, receive_limited, send)


class BindVersion:
    """ASGI middleware: bind a request to the newest version. On a reused connection it starts in the context of the request
    before, which may have been bound to another version."""

    def __init__(self, app: ASGIApp, versions: JudgeVersions) -> None:
        self._app, self._versions = app, versions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._versions.bound(self._versions.newest):
            await self._app(scope, receive, send)
