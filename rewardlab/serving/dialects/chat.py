"""``/v1/chat/completions``: a chat that ends with the assistant is rewarded, as by NVIDIA NIM's reward models; one that ends
with the user is completed by the judge's model, for clients with their own prompts."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rewardlab.errors import DataError
from rewardlab.samplers.base import SamplingParams
from rewardlab.serving.conversations import chat_sample, read_item
from rewardlab.serving.dialects.openai_parameters import refuse_unsupported
from rewardlab.serving.jobs import ChatJob
from rewardlab.serving.schemas import JsonObject
from rewardlab.serving.service import JudgeService
from rewardlab.serving.strict_json import StrictJSONRoute
from rewardlab.types import Completion, Message, Part

MAX_TOKENS = 32768


class StreamOptions(BaseModel):
    """Whether the last event of a stream has the usage; other options have no effect."""

    include_usage: bool = False


class ChatCompletionRequest(BaseModel):
    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "messages": [{"role": "user", "content": "What color is it?"}, {"role": "assistant", "content": "It is red."}]
            }
        },
    )
    model: str = ""
    messages: list[JsonObject] = Field(min_length=1, max_length=256)
    n: int = Field(1, ge=1, le=64)
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, ge=0.001, le=1)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("temperature")
    @classmethod
    def _is_drawn_from(cls, temperature: float | None) -> float | None:
        if temperature is not None and 0 < temperature < 0.01:
            raise ValueError("expected 0, for greedy, or 0.01 to 10: below that the probabilities are not finite")
        return temperature


class ChatMessage(BaseModel):
    role: str = "assistant"
    content: str


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(BaseModel):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: dict[str, int]


def _choice(index: int, text: str, reason: str) -> ChatChoice:
    return ChatChoice(index=index, message=ChatMessage(content=text), finish_reason=reason)


def _events(completion: ChatCompletion, with_usage: bool) -> Iterator[str]:
    """Yield the completion as server-sent events: one for each choice, and one for the usage."""
    head = {**completion.model_dump(), "object": "chat.completion.chunk"}
    usage = head.pop("usage")
    for choice in completion.choices:
        part = {"index": choice.index, "delta": choice.message.model_dump(), "finish_reason": choice.finish_reason}
        yield f"data: {json.dumps({**head, 'choices': [part]})}\n\n"
    if with_usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def chat_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["chat: NIM's reward models, plain judging"], route_class=StrictJSONRoute)

    async def complete(request: ChatCompletionRequest) -> list[Completion]:
        turns = [read_item(message) for message in request.messages]
        for message, (role, _, _) in zip(request.messages, turns, strict=True):
            if role not in ("system", "user", "assistant"):
                raise DataError(f"a message has the role {role!r:.80}; expected system, developer, user or assistant")
            if message.get("tool_calls") or message.get("function_call"):
                raise DataError("a message calls a tool; chat completions support text and images only")
        service.limits.check_images(sum(len(references) for _, _, references in turns))
        await service.check_context(*(text for _, text, _ in turns))
        parts = []
        for role, text, references in turns:
            images = tuple(Part(image=image) for image in await service.images(references))
            parts.append(Message(role, (*images, Part(text=text))))
        judge = service.judge
        options = (request.temperature, request.top_p, request.max_completion_tokens or request.max_tokens)
        defaults = (judge.config.temperature, judge.config.top_p, judge.config.max_tokens)
        temperature, top_p, max_tokens = (b if a is None else a for a, b in zip(options, defaults, strict=True))
        service.limits.check_completion(request.n, int(max_tokens), judge.config.max_tokens)
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        params = SamplingParams(request.n, temperature, top_p, int(max_tokens), seed)
        job = ChatJob(tuple(parts), params, is_new_draw=request.seed is None)
        completions: list[Completion] = await service.queue.submit(job)
        return completions

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: ChatCompletionRequest) -> ChatCompletion | Response:
        """Return ``reward:0.5`` for a question and the text of the assistant's answer; complete a chat that ends with the user.

        A completion without ``seed`` is sampled anew each time. Unsupported parameters that would change the answer are refused
        (400); sampling parameters have no effect on a reward."""
        refuse_unsupported(request.model_extra)
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        if request.messages[-1].get("role") == "assistant":
            if request.n > 1:
                raise DataError("a reward is a single number: n must be 1 if the last message is the assistant's")
            reward = (await service.sample_rewards([chat_sample(request.messages)]))[0]
            choices = [_choice(0, f"reward:{reward:.4f}", "stop")]
        else:
            completions = await complete(request)
            choices = [_choice(n, completion.text, completion.finish.value) for n, completion in enumerate(completions)]
            num_prompt, num_tokens = completions[0].num_prompt_tokens, sum(completion.num_tokens for completion in completions)
            usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
        response = ChatCompletion(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=request.model or service.judge_name,
            choices=choices,
            usage=usage,
        )
        if not request.stream:
            return response
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return StreamingResponse(_events(response, with_usage), media_type="text/event-stream")

    return router
