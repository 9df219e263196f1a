"""Middleware between socket and application: bodies have a maximal size and strict JSON, a disconnect cancels the request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: a request whose body grows beyond ``max_bytes``, or what its key may send (``scope["max_bytes"]``), is
    answered with 413 and read no further."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, limit = 0, min(self._max_bytes, scope.get("max_bytes", self._max_bytes))

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, f"the request is larger than {limit:,} bytes; upload its images first, or resize them")
            return message

        await self._app(scope, receive_limited, send)


class CancelOnDisconnect:
    """ASGI middleware: a request whose client disconnects is cancelled, and leaves the queue."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        disconnected, body_complete = asyncio.Event(), asyncio.Event()

        async def receive_body() -> Message:
            if body_complete.is_set():  # there is nothing left to come but the end
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


class StrictJSONRequest(Request):
    """A request whose JSON must follow the standard: no NaN, and no half of a surrogate pair, which nothing can encode."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = json.loads(body, parse_constant=_refuse)
            if b"\\ud" in body or b"\\uD" in body:
                try:
                    json.dumps(self._json, ensure_ascii=False).encode()
                except UnicodeEncodeError as error:
                    raise HTTPException(400, "the body holds half of a surrogate pair, which is no character") from error
        return self._json


def _refuse(constant: str) -> None:
    raise HTTPException(400, f"the body holds {constant}, which is no number of JSON")


class StrictJSONRoute(APIRoute):
    """A route that reads :class:`StrictJSONRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(StrictJSONRequest(request.scope, request.receive))

        return handler
