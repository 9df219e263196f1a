"""``/v1/chat/completions``: a chat that ends with the assistant is rewarded (NVIDIA NIM's reward models), one that ends with
the user is completed by the judge's model, for clients that bring a judge's prompt of their own."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.samplers.base import SamplingParams
from rewardlab.serving.jobs import Chat
from rewardlab.serving.middleware import SoundRoute
from rewardlab.serving.service import JudgeService
from rewardlab.serving.text import content_of, sample_of_chat
from rewardlab.types import Completion, Message, Part

MAX_TOKENS = 32768


class Completions(BaseModel):
    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "messages": [{"role": "user", "content": "What color is it?"}, {"role": "assistant", "content": "It is red."}]
            }
        },
    )
    model: str = ""
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=256)
    n: int = Field(1, ge=1, le=64)
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stream: bool = False


def choices_of(completions: Sequence[Completion]) -> list[dict[str, Any]]:
    return [_choice(n, one.text, one.finish.value) for n, one in enumerate(completions)]


def _choice(index: int, text: str, reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"index": index, "message": message, "finish_reason": reason, "logprobs": None}


def streamed(answer: dict[str, Any]) -> Iterator[str]:
    """The answer as server-sent events: each choice whole, in one."""
    head = {**answer, "object": "chat.completion.chunk"}
    for choice in answer["choices"]:
        part = {"index": choice["index"], "delta": choice["message"], "finish_reason": choice["finish_reason"]}
        yield f"data: {json.dumps({**head, 'choices': [part]})}\n\n"
    yield "data: [DONE]\n\n"


def routes(service: JudgeService) -> APIRouter:
    router, judge = APIRouter(tags=["chat: NIM's reward models, plain judging"], route_class=SoundRoute), service.judge

    async def complete(request: Completions) -> list[Completion]:
        parts = []
        for one in request.messages:
            role = one.get("role")
            if role not in ("system", "user", "assistant"):
                raise DataError(f"a message has the role {role!r}; expected system, user or assistant")
            text, shown = content_of(one.get("content"))
            images = tuple(Part(image=image) for image in await service.images(shown))
            parts.append(Message(role, (*images, Part(text=text))))
        given = (request.temperature, request.top_p, request.max_completion_tokens or request.max_tokens)
        own = (judge.temperature, judge.top_p, judge.max_tokens)
        temperature, top_p, max_tokens = (b if a is None else a for a, b in zip(given, own, strict=True))
        params = SamplingParams(request.n, temperature, top_p, int(max_tokens), request.seed or 0)
        done: list[Completion] = await service.batcher.ask(Chat(tuple(parts), params))
        return done

    @router.post("/v1/chat/completions", response_model=None)
    async def completions(request: Completions) -> dict[str, Any] | Response:
        """``reward:0.5`` for a question and the assistant's answer to it; a chat that ends with the user is completed."""
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        if request.messages[-1].get("role") == "assistant":
            if request.n > 1:
                raise DataError("a reward is one number: n must be 1 where the messages end with the assistant's")
            reward = (await service.sample_rewards([sample_of_chat(request.messages)]))[0]
            choices = [_choice(0, f"reward:{reward:.4f}", "stop")]
        else:
            drawn = await complete(request)
            choices = choices_of(drawn)
            asked, written = drawn[0].num_prompt_tokens, sum(one.num_tokens for one in drawn)
            usage = {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time())}
        answer = head | {"model": request.model or judge.name, "choices": choices, "usage": usage}
        return StreamingResponse(streamed(answer), media_type="text/event-stream") if request.stream else answer

    return router
