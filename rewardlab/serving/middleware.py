"""What stands between the socket and the application: bodies have a size and are text, who hangs up is not answered."""

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

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, f"the request is larger than {limit:,} bytes; upload its images first, or resize them")
            return message

        await self._app(scope, counted, send)


class HangUp:
    """ASGI middleware: who hangs up is not answered, and what it asked leaves the queue."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        gone, whole = asyncio.Event(), asyncio.Event()

        async def watched() -> Message:
            if whole.is_set():  # there is nothing left to come but the end
                await gone.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            elif not message.get("more_body", False):
                whole.set()
            return message

        async def watch() -> None:
            await whole.wait()
            while not gone.is_set():
                if (await receive())["type"] == "http.disconnect":
                    gone.set()

        answering, watching = asyncio.ensure_future(self._app(scope, watched, send)), asyncio.ensure_future(watch())
        hung_up = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering
        finally:
            for task in (answering, watching, hung_up):
                task.cancel()


class SoundRequest(Request):
    """A request whose JSON is what the standard calls so: no NaN, and no half of a surrogate pair, which nothing can encode."""

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


class SoundRoute(APIRoute):
    """A route that reads :class:`SoundRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(SoundRequest(request.scope, request.receive))

        return handler
