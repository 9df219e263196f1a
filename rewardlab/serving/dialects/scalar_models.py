"""Standing in for a scalar reward model, one conversation at a time: ``/classify``, ``/v1/embeddings``, ``/pooling`` (verl,
vLLM, SGLang), ``/v1/score/evaluation`` (LLaMA-Factory).

An input is a chat that ends with the assistant, as messages or as one text with chat marks. Those of one prompt within a
request are compared with each other; one alone waits for its cohort. The reward is in -1..1.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.serving.middleware import SoundRoute
from rewardlab.serving.service import JudgeService
from rewardlab.serving.text import Sample, labeled_sample, sample_of_chat, split_sequence

Chat = list[dict[str, Any]]


class Inputs(BaseModel):
    model_config = ConfigDict(
        extra="ignore",
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
    input: str | list[str] | None = None
    messages: Chat | None = None


class Evaluation(BaseModel):
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
    messages: list[str] = Field(max_length=1024)


def samples_of(request: Inputs) -> list[Sample]:
    if request.messages is not None:
        return [sample_of_chat(request.messages)]
    texts = [request.input] if isinstance(request.input, str) else request.input or []
    return [labeled_sample(*split_sequence(text)) for text in texts]


def routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["scalar reward models: verl, vLLM, SGLang, LLaMA-Factory"], route_class=SoundRoute)

    def listed(model: str, kind: str, data: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": f"{kind}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return head | {"model": model or service.judge.name, "data": data, "usage": usage}

    @router.post("/classify")
    @router.post("/v1/classify")
    async def classify(request: Inputs) -> dict[str, Any]:
        """``data[n].probs[-1]`` is the reward."""
        rewards = await service.sample_rewards(samples_of(request))
        data = [{"index": n, "label": "LABEL_0", "probs": [value], "num_classes": 1} for n, value in enumerate(rewards)]
        return listed(request.model, "classify", data)

    @router.post("/v1/embeddings")
    async def embeddings(request: Inputs) -> dict[str, Any]:
        """``data[n].embedding[-1]`` is the reward."""
        rewards = await service.sample_rewards(samples_of(request))
        data = [{"index": n, "object": "embedding", "embedding": [value]} for n, value in enumerate(rewards)]
        return listed(request.model, "embd", data)

    @router.post("/pooling")
    async def pooling(request: Inputs) -> dict[str, Any]:
        """``data[n].data[-1]`` is the reward."""
        rewards = await service.sample_rewards(samples_of(request))
        data = [{"index": n, "object": "pooling", "data": [value]} for n, value in enumerate(rewards)]
        return listed(request.model, "pool", data)

    @router.post("/v1/score/evaluation")
    async def evaluation(request: Evaluation) -> dict[str, Any]:
        """``scores``, one for each text."""
        scores = await service.sample_rewards([labeled_sample(*split_sequence(text)) for text in request.messages])
        head = {"id": f"scoreval-{uuid.uuid4().hex}", "object": "score.evaluation"}
        return head | {"model": request.model or service.judge.name, "scores": scores}

    return router
