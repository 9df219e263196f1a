"""APIs in the shape of OpenAI's: chats, and scalar reward models.

``/v1/chat/completions``: a chat that ends with the assistant is rewarded, as by NVIDIA NIM's reward models; one that ends with
the user is completed by the judge's model, for clients with their own prompts. Unsupported parameters that would change the
answer are refused. ``/v1/responses`` is the same in the shape of the Responses API.

``/classify``, ``/v1/embeddings``, ``/pooling`` (verl, vLLM, SGLang) and ``/v1/score/evaluation`` (LLaMA-Factory): an input is a
chat that ends with the assistant, as messages or as a text with chat markup. Inputs of one prompt within a request are compared
with each other; a single one waits for its group. Rewards are in -1..1.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rewardlab.errors import DataError
from rewardlab.prompts import interleaved, joined
from rewardlab.samplers.base import FormatSampler, Sampler, SamplingParams
from rewardlab.serving.conversations import Sample, chat_sample, read_item, split_samples
from rewardlab.serving.errors import UnsupportedParameterError
from rewardlab.serving.jobs import ChatJob
from rewardlab.serving.media import run_in_turn
from rewardlab.serving.schemas import Items, JsonObject, example_config
from rewardlab.serving.service import JudgeService
from rewardlab.serving.strict_json import StrictJSONRoute
from rewardlab.types import Completion, FinishReason, Message, Part

# Parameters without effect on an answer: user, storage and billing at OpenAI.
WITHOUT_EFFECT = frozenset(
    [
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    ]
)
# Parameters of truncation: this server never truncates, and refuses texts that are too long.
CUTTING = ("truncate", "truncation_direction", "truncate_prompt_tokens", "max_chunks_per_doc", "max_tokens_per_doc")
# Values without effect, which clients send as defaults.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "background": (False,),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "normalize": (False,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "priority": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "softmax": (False,),
    "stop": ([], ""),
    "store": (False,),
    "stream": (False,),
    "text": ({"format": {"type": "text"}},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "use_activation": (False,),
    "verbosity": ("medium",),
}


def refuse_unsupported(parameters: Mapping[str, Any] | None, *, without_effect: Collection[str] = ()) -> None:
    """Raise UnsupportedParameterError for the first parameter that would change the answer. ``without_effect`` are parameters
    that have none on this route."""
    for name, value in (parameters or {}).items():
        if name in WITHOUT_EFFECT or name in without_effect or value is None:
            continue
        if value not in NEUTRAL.get(name, ()):
            accepted = " or ".join(repr(neutral) for neutral in NEUTRAL.get(name, ()))
            cure = f"leave it out, or send {accepted}" if accepted else "leave it out"
            raise UnsupportedParameterError(f"the parameter {name!r:.80} is not supported here: {cure}", name)


def answer_head(service: JudgeService, prefix: str, model: str) -> JsonObject:
    """Return the fields with which answers begin; ``model`` is the one that the request names."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model or service.judge_name}


MAX_TOKENS = 32768


class StreamOptions(BaseModel):
    """Whether the last event of a stream has the usage; other options have no effect."""

    include_usage: bool = False


class CompletionRequest(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str = ""
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, ge=0.001, le=1)

    @field_validator("temperature")
    @classmethod
    def _is_drawn_from(cls, temperature: float | None) -> float | None:
        if temperature is not None and 0 < temperature < 0.01:
            raise ValueError("expected 0, for greedy, or 0.01 to 10: below that the probabilities are not finite")
        return temperature


class ChatCompletionRequest(CompletionRequest):
    model_config = example_config(
        {"messages": [{"role": "user", "content": "What color is it?"}, {"role": "assistant", "content": "It is red."}]}
    )
    messages: list[JsonObject] = Field(min_length=1, max_length=256)
    n: int = Field(1, ge=1, le=64)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    do_sample: bool | None = Field(None, description="false: greedy, as at temperature 0")
    seed: int | None = Field(None, ge=0, lt=2**63)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def most_tokens(self) -> int | None:
        """Return how many tokens an answer may have, None for as many as the server writes."""
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _samples_or_not(self) -> Self:
        if self.do_sample is False and self.temperature:
            raise ValueError("do_sample is false, which is greedy, but the temperature is above 0; leave one of them out")
        return self


class ResponsesRequest(CompletionRequest):
    model_config = example_config({"input": "What color is it?", "instructions": "Be brief."})
    input: str | Annotated[list[JsonObject], Field(min_length=1, max_length=255)]
    instructions: str | None = Field(None, description="a message of the system before the input")
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)

    @property
    def chat(self) -> ChatCompletionRequest:
        """Return the request as one of chat completions. Raise DataError for an input of reasoning alone."""
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        messages = [item for item in items if item.get("type") != "reasoning"]
        if not messages:
            raise DataError("input has no message; expected a text, or at least one message of the user")
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        options = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_output_tokens}
        return ChatCompletionRequest.model_validate({"model": self.model, "messages": messages, **options})

    def response(self, completion: ChatCompletion) -> JsonObject:
        """Return a completion as an object of the Responses API."""
        [choice], usage = completion.choices, completion.usage
        is_cut = choice.finish_reason == FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "status": status}
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": completion.created,
            "model": completion.model,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "error": None,
            "output": [message | {"content": [{"type": "output_text", "text": choice.message.content, "annotations": []}]}],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            "instructions": self.instructions,
            "max_output_tokens": completion.max_tokens or self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
        }


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
    max_tokens: int | None = None  # of an answer, where that is fewer than requested


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


def _response_format(request: ChatCompletionRequest, sampler: Sampler) -> str:
    """Return the format of JSON that a completion is requested in, itself as JSON; "" for none, and for one that is not
    supported: for a reward, or where the engine does not take it."""
    form, is_reward = (request.model_extra or {}).get("response_format"), request.messages[-1].get("role") == "assistant"
    is_json = isinstance(form, dict) and form.get("type") in ("json_object", "json_schema") and not is_reward
    return json.dumps(form) if is_json and isinstance(sampler, FormatSampler) and sampler.takes_response_format else ""


def _check_json(completions: Sequence[Completion]) -> None:
    """Raise UnsupportedParameterError for a complete answer that is no JSON although that was requested."""
    for completion in completions:
        if completion.finish is FinishReason.STOP:
            try:
                json.loads(completion.text)
            except ValueError as error:
                raise UnsupportedParameterError(
                    "the answer is not JSON: the judge's engine does not follow 'response_format'; leave it out",
                    "response_format",
                ) from error


def chat_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["chat: NIM's reward models, plain judging"], route_class=StrictJSONRoute)

    async def complete(request: ChatCompletionRequest, form: str) -> list[Completion]:
        turns = [read_item(message) for message in request.messages]
        for message, turn in zip(request.messages, turns, strict=True):
            if turn.role not in ("system", "user", "assistant"):
                raise DataError(f"a message has the role {turn.role!r:.80}; expected system, developer, user or assistant")
            if message.get("tool_calls") or message.get("function_call") or message.get("type") == "function_call":
                raise DataError("a message calls a tool; chat completions support text, images and videos only")
        contents = [turn.content for turn in turns]
        service.check_media(*contents)
        await service.check_context(*(content.text for content in contents))
        chat = [
            Message(turn.role, tuple(joined(interleaved(text, images) if images else [Part(text=text)])))
            for turn, (text, images) in zip(turns, await service.shown(contents), strict=True)
        ]
        judge = service.judge
        greedy = 0.0 if request.do_sample is False else None
        options = (greedy if request.temperature is None else request.temperature, request.top_p)
        defaults = (judge.config.temperature, judge.config.top_p)
        temperature, top_p = (b if a is None else a for a, b in zip(options, defaults, strict=True))
        service.limits.check_completion(request.n)
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        most = judge.config.max_tokens  # no answer has more, however many are requested
        params = SamplingParams(request.n, temperature, top_p, min(most, request.most_tokens or most), seed, form)
        job = ChatJob(tuple(chat), params, is_new_draw=request.seed is None)
        completions: list[Completion] = await service.queue.submit(job)
        if form:
            _check_json(completions)
        return completions

    async def answer(request: ChatCompletionRequest) -> ChatCompletion:
        sent, in_any_request = request.model_extra or {}, service.judge.config.fields
        supported = {name for name, value in in_any_request.items() if sent.get(name) == value}
        if sent.get("chat_template_kwargs") == {"enable_thinking": False} and service.queue.versions.current.never_thinks_apart:
            supported.add("chat_template_kwargs")
        if form := _response_format(request, service.judge.of_one_turn):
            supported.add("response_format")
        refuse_unsupported(sent, without_effect=supported)
        usage, lowered = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None
        if request.messages[-1].get("role") == "assistant":
            if request.n > 1:
                raise DataError("a reward is a single number: n must be 1 if the last message is the assistant's")
            reward = (await service.sample_rewards([chat_sample(request.messages)]))[0]
            choices = [_choice(0, f"reward:{reward:.4f}", "stop")]
        else:
            completions = await complete(request, form)
            most = service.judge.config.max_tokens
            lowered = most if (request.most_tokens or 0) > most else None
            choices = [_choice(n, completion.text, completion.finish.value) for n, completion in enumerate(completions)]
            num_prompt, num_tokens = completions[0].num_prompt_tokens, sum(completion.num_tokens for completion in completions)
            usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
        head = answer_head(service, "chatcmpl", request.model)
        return ChatCompletion(**head, choices=choices, usage=usage, max_tokens=lowered)

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: ChatCompletionRequest) -> ChatCompletion | Response:
        """Return ``reward:0.5`` for a question and the text of the assistant's answer; complete a chat that ends with the user.

        A completion without ``seed`` is sampled anew each time, and has no more tokens than the server writes: ``max_tokens``
        in the answer says how many, if more were requested. Unsupported parameters that would change the answer are refused
        (400); sampling parameters have no effect on a reward."""
        response = await answer(request)
        if not request.stream:
            return response
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return StreamingResponse(_events(response, with_usage), media_type="text/event-stream")

    @router.post("/v1/responses")
    async def responses(request: ResponsesRequest) -> JsonObject:
        """Answer as chat completions do, in the shape of OpenAI's Responses API. Nothing is stored, streamed or truncated:
        parameters for that are refused (400)."""
        refuse_unsupported(request.model_extra)
        return request.response(await answer(request.chat))

    return router


T = TypeVar("T")
_SEQUENCES = [
    f"<|im_start|>user\nWhat color is it?<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>" for text in ("Red.", "Blue.")
]


class PoolingRequest(BaseModel):
    model_config = example_config({"input": _SEQUENCES}, extra="allow")
    model: str = ""
    input: str | Items[str] | None = None
    messages: Items[JsonObject] | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, int | list) for item in value[:1]):
            raise ValueError("holds token ids; this server reads texts (langchain: check_embedding_ctx_length=False)")
        return value


class EmbeddingsRequest(PoolingRequest):
    """OpenAI's, whose clients request ``base64`` (little-endian float32) by default."""

    encoding_format: Literal["float", "base64"] = "float"


class EvaluationRequest(BaseModel):
    model_config = example_config({"messages": _SEQUENCES})
    model: str = ""
    messages: Items[str]


class Classification(BaseModel):
    index: int
    label: str = "LABEL_0"
    probs: list[float]
    num_classes: int = 1


class Embedding(BaseModel):
    index: int
    object: str = "embedding"
    embedding: list[float] | str


class Pooling(BaseModel):
    index: int
    object: str = "pooling"
    data: list[float]


class PoolingResponse(BaseModel, Generic[T]):
    """One item for each input."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[T]
    usage: dict[str, int] = Field(default={"prompt_tokens": 0, "total_tokens": 0})


class EvaluationResponse(BaseModel):
    id: str
    object: str = "score.evaluation"
    model: str
    scores: list[float]


def _samples(request: PoolingRequest) -> list[Sample]:
    if request.messages is not None:
        return [chat_sample(request.messages)]
    return split_samples([request.input] if isinstance(request.input, str) else request.input or [])


def _encoded(vector: list[float], encoding: Literal["float", "base64"]) -> list[float] | str:
    return vector if encoding == "float" else base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def scalar_model_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["scalar reward models: verl, vLLM, SGLang, LLaMA-Factory"], route_class=StrictJSONRoute)

    def response(request: PoolingRequest, prefix: str, data: list[T]) -> PoolingResponse[T]:
        return PoolingResponse(**answer_head(service, prefix, request.model), data=data)

    async def rewards_of(request: PoolingRequest) -> list[float]:
        refuse_unsupported(request.model_extra, without_effect=(*CUTTING, "add_special_tokens", "task", "rid"))
        return await service.sample_rewards(await run_in_turn(_samples, request))

    @router.post("/classify")
    @router.post("/v1/classify")
    async def classify(request: PoolingRequest) -> PoolingResponse[Classification]:
        """Return the rewards as ``data[n].probs[-1]``."""
        rewards = await rewards_of(request)
        return response(request, "classify", [Classification(index=n, probs=[value]) for n, value in enumerate(rewards)])

    @router.post("/v1/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> PoolingResponse[Embedding]:
        """Return the rewards as ``data[n].embedding[-1]``."""
        vectors = [_encoded([value], request.encoding_format) for value in await rewards_of(request)]
        return response(request, "embd", [Embedding(index=n, embedding=vector) for n, vector in enumerate(vectors)])

    @router.post("/pooling")
    async def pooling(request: PoolingRequest) -> PoolingResponse[Pooling]:
        """Return the rewards as ``data[n].data[-1]``."""
        rewards = await rewards_of(request)
        return response(request, "pool", [Pooling(index=n, data=[value]) for n, value in enumerate(rewards)])

    @router.post("/v1/score/evaluation")
    async def evaluation(request: EvaluationRequest) -> EvaluationResponse:
        """Return ``scores``, one for each text."""
        scores = await service.sample_rewards(await run_in_turn(split_samples, request.messages))
        return EvaluationResponse(**answer_head(service, "scoreval", request.model), scores=scores)

    return router
