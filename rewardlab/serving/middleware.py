"""Middleware between socket and application: the browser guard, and the cancellation of requests whose client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardlab.serving.errors import error_response
from rewardlab.serving.request_record import route_path

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
    any name: for a server that listens on other interfaces, too, and without ``names``."""
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
        if self._allowed and route_path(scope) not in PROBED and _name_of(headers.get("host", "")) not in self._allowed:
            sentence = f"this server does not answer to the name {headers.get('host', '')[:80]!r}; --allowed-host adds one"
            await error_response(scope["path"], 421, sentence, status="host")(scope, receive, send_with_headers)
        elif scope["method"] not in SAFE_METHODS and _is_foreign(headers):
            sentence = "the request was sent by a page of another site, which is not allowed"
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
            with contextlib.suppress(asyncio.CancelledError):
                await response
        finally:
            for task in (response, watcher, disconnect):
                task.cancel()
