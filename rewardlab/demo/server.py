"""The demonstration's two remote models behind one real OpenAI-compatible HTTP server.

``demo-teacher`` judges pairs with reasoning; it errs and it bluffs, the more the harder the pair. ``demo-checker`` is the
consistency judge: it reads a reasoning and a verdict and says whether they agree. Neither is a language model; the
protocol is real, so the client code that asks them is the code that asks any endpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rewardlab.data.images import from_data_url
from rewardlab.demo.judgments import Truth, grounded_judgment, shallow_judgment
from rewardlab.demo.pairs import read_truths

TEACHER, CHECKER = "demo-teacher", "demo-checker"


@dataclass(frozen=True)
class TeacherConfig:
    """Quality of the teacher by level 1..3: shares of judgments that are ``shallow``, and of the others that are ``misread``.

    ``contradict`` is the share of shallow judgments whose reasoning praises the answer they then reject.
    """

    shallow: tuple[float, float, float] = (0.44, 0.54, 0.56)
    misread: tuple[float, float, float] = (0.01, 0.1, 0.28)
    contradict: float = 0.35
    seed: int = 0

    def judge(self, truth: Truth, responses: Sequence[str], rng: random.Random) -> str:
        """Return one judgment."""
        level = truth.level - 1
        if rng.random() < self.shallow[level]:
            return shallow_judgment(rng, contradict=self.contradict)[0]
        return grounded_judgment(truth, (responses[0], responses[1]), misread=rng.random() < self.misread[level])[0]


class Teacher(Protocol):
    """Who judges behind the endpoint; ``seed`` is a part of what each draw depends on."""

    @property
    def seed(self) -> int: ...

    def judge(self, truth: Truth, responses: Sequence[str], rng: random.Random) -> str:
        """Return one judgment of a pair, given its truth."""
        ...


@dataclass
class Faults:
    """Shares of requests that fail on purpose, to test clients: 429, 500, a garbled body, a hang of ``hang_s`` seconds."""

    too_many: float = 0.0
    broken: float = 0.0
    garbage: float = 0.0
    hang: float = 0.0
    hang_s: float = 60.0


def _responses(prompt: str) -> tuple[str, str] | None:
    match = re.search(r"Response 1\W*:\s*(.+?)\s*\n\W*Response 2\W*:\s*(.+?)\s*(?:\n|$)", prompt)
    return (match[1], match[2]) if match else None


def favored_response(reasoning: str) -> int | None:
    """Return the response (1 or 2) that a reasoning in the demonstration's words favors; None for neither or both."""
    marks = {int(n): mark == "correct" for n, mark in re.findall(r"Response ([12]):[^.]*?(correct|wrong)\b", reasoning)}
    praised = {int(n) for n in re.findall(r"Response ([12]) (?:sounds|is|reads)\b", reasoning)}
    ahead = {n for n, good in marks.items() if good} | praised
    return ahead.pop() if len(ahead) == 1 else None


def check_consistency(prompt: str) -> str:
    """Return "1" if reasoning and verdict agree, "0" if not, "unclear" if the reasoning takes no side."""
    reasoning = re.search(r"\[Reasoning\]\s*(.*?)\s*\[Verdict\]", prompt, re.DOTALL)
    verdict = re.search(r"\[Verdict\]\s*Response ([12]) is better", prompt)
    if reasoning is None or verdict is None:
        return "unclear"
    side = favored_response(reasoning[1])
    return "unclear" if side is None else str(int(side == int(verdict[1])))


def _text_and_image(messages: Sequence[Mapping[str, Any]]) -> tuple[str, bytes | None]:
    text, image = [], None
    for message in messages:
        content = message["content"]
        parts: Sequence[Mapping[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part["type"] == "text":
                text.append(part["text"])
            elif part["type"] == "image_url":
                image = from_data_url(part["image_url"]["url"])
    return "\n".join(text), image


def _completion(model: str, text: str, prompt: str) -> Response:
    usage = {"prompt_tokens": len(prompt) // 4 + 1, "completion_tokens": len(text) // 4 + 1}
    body = {
        "id": "chatcmpl-demo",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }
    return JSONResponse(body)


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": text, "type": "demo_error", "code": status}}, status, headers)


def build_demo_app(truths: Sequence[Truth], teacher: Teacher, faults: Faults | None = None) -> Starlette:
    """Return the ASGI application. A draw depends on ``teacher.seed``, the request and its ``seed``, nothing else."""
    truth_of_image = {truth.image_sha256: truth for truth in truths}
    faults = faults or Faults()
    dice = random.Random(teacher.seed)

    async def fault() -> Response | None:
        roll = dice.random()
        for share, status in ((faults.too_many, 429), (faults.broken, 500), (faults.garbage, 200), (faults.hang, 0)):
            if roll < share:
                if status in (429, 500):
                    return _error(status, "slow down" if status == 429 else "the server is broken", {"Retry-After": "0.05"})
                if status == 200:
                    return Response("<html>not what you asked for</html>", media_type="text/html")
                await asyncio.sleep(faults.hang_s)
                return _error(504, "too late")
            roll -= share
        return None

    async def chat(request: Request) -> Response:
        if (failed := await fault()) is not None:
            return failed
        try:
            body = json.loads(await request.body())
            model, (prompt, image) = body["model"], _text_and_image(body["messages"])
        except (KeyError, ValueError, TypeError) as error:
            return _error(400, f"not a chat completion request: {error!r}")
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        if model == CHECKER:
            return _completion(model, check_consistency(prompt), prompt)
        if model != TEACHER:
            return _error(404, f"no model {model!r}; there are {TEACHER} and {CHECKER}")
        truth = truth_of_image.get(hashlib.sha256(image or b"").hexdigest())
        responses = _responses(prompt)
        if truth is None or responses is None or set(responses) != {truth.right, truth.wrong}:
            return _error(400, "not a pair of this demonstration: its image or its responses are unknown")
        rng = random.Random(f"{teacher.seed} {truth.image_sha256} {responses} {body.get('seed', 0)}")
        return _completion(model, teacher.judge(truth, responses, rng), prompt)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": m, "object": "model"} for m in (TEACHER, CHECKER)]})

    return Starlette(
        routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models, methods=["GET"])]
    )


def serve_demo(truth_file: Path, *, port: int, teacher: Teacher) -> None:
    """Serve the teacher and the checker until killed."""
    uvicorn.run(build_demo_app(read_truths(truth_file), teacher), host="127.0.0.1", port=port, log_level="warning")
