"""Between socket and application: bodies are strict JSON, a disconnect cancels the request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardlab.serving.strict_json import check_size, parse_json


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
    """A request whose body :func:`rewardlab.serving.strict_json.parse_json` reads, within the limits of the application."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limits, body = self.app.state.limits, bytearray()
            async for chunk in self.stream():
                body += chunk
                check_size(len(body), limits)
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body(), self.app.state.limits)
        return self._json


class StrictJSONRoute(APIRoute):
    """A route that reads :class:`StrictJSONRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(StrictJSONRequest(request.scope, request.receive))

        return handler
