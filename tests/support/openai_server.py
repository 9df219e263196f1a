"""A real OpenAI-compatible server of a scripted character, which counts what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.servers import running

VERDICT = "<think>the first one</think><answer>1</answer>"
Refusal = Callable[[dict[str, Any], int], tuple[int, str] | None]


@dataclass
class ChatServer:
    """What a server answers, and what it was asked: ``bodies`` of all requests in their order, ``most`` of them at a time.

    ``refuse(body, number)`` gives the status and the sentence of a refusal, or None; ``delay_s`` is how long an answer takes.
    """

    refuse: Refusal = lambda body, number: None
    delay_s: float = 0.0
    text: str | Callable[[int], str] | None = VERDICT  # or by the number of the request, from 1 on
    by_seed: bool = False  # one of the two verdicts, by the seed of the request
    hold: tuple[int, int] | None = None  # (number of a request, how many there must be before it is answered)
    finish: str = "stop"
    usage: dict[str, Any] = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    answers: int = 0
    most: int = 0
    inside: int = 0

    def verdict(self, body: dict[str, Any]) -> str:
        if self.by_seed:
            return f"<think>{body['seed']}</think><answer>{1 + body['seed'] % 2}</answer>"
        return self.text(len(self.bodies)) if callable(self.text) else self.text

    async def chat(self, request: Request) -> Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return await self._chat(await request.json())
        finally:
            self.inside -= 1

    async def _chat(self, body: dict[str, Any]) -> Response:
        self.bodies.append(body)
        refusal = self.refuse(body, len(self.bodies))
        if refusal is not None:
            return JSONResponse({"error": {"message": refusal[1]}}, refusal[0])
        number = len(self.bodies)
        await asyncio.sleep(self.delay_s)
        while self.hold is not None and self.hold[0] == number and len(self.bodies) < self.hold[1]:
            await asyncio.sleep(0.005)
        self.answers += 1
        message = {"role": "assistant", "content": self.verdict(body)}
        choice = {"index": 0, "finish_reason": self.finish, "message": message}
        return JSONResponse({"id": "x", "created": 0, "model": "m", "choices": [choice], "usage": self.usage})


@contextmanager
def chat_server(server: ChatServer) -> Iterator[str]:
    """Serve it; yields the base URL of its API."""
    app = Starlette(routes=[Route("/v1/chat/completions", server.chat, methods=["POST"])])
    with running(app) as url:
        yield f"{url}/v1"
