"""The APIs of scalar reward models: ``/classify``, ``/v1/embeddings``, ``/pooling`` (verl, vLLM, SGLang) and
``/v1/score/evaluation`` (LLaMA-Factory).

An input is a chat that ends with the assistant, as messages or as a text with chat markup. Inputs of one prompt within a
request are compared with each other; a single one waits for its group. Rewards are in -1..1. A response with an image is
refused.
"""

from __future__ import annotations

import base64
import struct
import time
import uuid
from typing import Any, Generic, Literal, TypeVar

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rewardlab.serving.conversations import Sample, chat_sample, split_samples
from rewardlab.serving.dialects.openai_parameters import CUTTING, refuse_unsupported
from rewardlab.serving.schemas import Items, JsonObject
from rewardlab.serving.service import JudgeService
from rewardlab.serving.strict_json import StrictJSONRoute

T = TypeVar("T")


class PoolingRequest(BaseModel):
    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "input": [
                    f"<|im_start|>user\nWhat color is it?<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>"
                    for text in ("Red.", "Blue.")
                ]
            }
        },
    )
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
    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "messages": [
                    f"<|im_start|>user\nWhat color is it?<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>"
                    for text in ("Red.", "Blue.")
                ]
            }
        },
    )
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
        model = request.model or service.judge_name
        return PoolingResponse(id=f"{prefix}-{uuid.uuid4().hex}", created=int(time.time()), model=model, data=data)

    async def rewards_of(request: PoolingRequest) -> list[float]:
        refuse_unsupported(request.model_extra, without_effect=(*CUTTING, "add_special_tokens", "task", "rid"))
        return await service.sample_rewards(await run_in_threadpool(_samples, request))

    @router.post("/classify")
    @router.post("/v1/classify")
    async def classify(request: PoolingRequest) -> PoolingResponse[Classification]:
        """Return the rewards as ``data[n].probs[-1]``; 422 for a response that holds an image."""
        rewards = await rewards_of(request)
        return response(request, "classify", [Classification(index=n, probs=[value]) for n, value in enumerate(rewards)])

    @router.post("/v1/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> PoolingResponse[Embedding]:
        """Return the rewards as ``data[n].embedding[-1]``; 422 for a response that holds an image."""
        vectors = [_encoded([value], request.encoding_format) for value in await rewards_of(request)]
        return response(request, "embd", [Embedding(index=n, embedding=vector) for n, vector in enumerate(vectors)])

    @router.post("/pooling")
    async def pooling(request: PoolingRequest) -> PoolingResponse[Pooling]:
        """Return the rewards as ``data[n].data[-1]``; 422 for a response that holds an image."""
        rewards = await rewards_of(request)
        return response(request, "pool", [Pooling(index=n, data=[value]) for n, value in enumerate(rewards)])

    @router.post("/v1/score/evaluation")
    async def evaluation(request: EvaluationRequest) -> EvaluationResponse:
        """Return ``scores``, one for each text."""
        scores = await service.sample_rewards(await run_in_threadpool(split_samples, request.messages))
        model = request.model or service.judge_name
        return EvaluationResponse(id=f"scoreval-{uuid.uuid4().hex}", model=model, scores=scores)

    return router
