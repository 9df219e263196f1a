"""OpenRLHF's remote reward model, in its versions, R1-Reward's, and slime's, the same for one sample.

``POST /get_reward`` and ``/get_reward_mllm``: ``{"query": [decoded prompt + response], "prompts": [...], "labels": [...]}``.
Samples of one prompt are compared with each other; OpenRLHF >= 0.9 sends them one by one, and they wait for their group. These
requests have no images: a label may be JSON with uploads, ``{"media": ["upload:ID"]}``, and an ``anchor`` to compare with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.serving.conversations import Sample, labeled_sample, read_conversation, split_sequence
from rewardlab.serving.schemas import MAX_CHARS, Items, JsonObject
from rewardlab.serving.service import JudgeService
from rewardlab.serving.strict_json import StrictJSONRoute


class GetRewardRequest(BaseModel):
    """``query`` are whole sequences with special tokens, ``prompts`` their beginnings."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "query": ["What color is it? It is red.", "What color is it? It is blue."],
                "prompts": ["What color is it?"] * 2,
                "labels": ['{"media": ["upload:ID"]}'] * 2,
            }
        },
    )
    query: Items[str]
    prompts: Items[str] | None = None
    labels: list[Any] | None = None


class GetRewardResponse(BaseModel):
    """``rewards`` in -1..1, ``scores`` the same in 0..1; numbers instead of one-element lists if ``flat``."""

    rewards: list[float] | float
    scores: list[float] | float
    extra_logs: dict[str, list[float]]


class MultimodalRewardResponse(BaseModel):
    rewards: list[float] | float


class SlimeRequest(BaseModel):
    """One sample, its prompt as text or messages; the answer is a bare number."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "prompt": "What color is it?",
                "response": "It is red.",
                "label": {"media": ["upload:ID"], "anchor": "It is blue."},
            }
        },
    )
    prompt: Annotated[str, Field(max_length=4 * MAX_CHARS)] | Items[JsonObject]
    response: str = Field(max_length=MAX_CHARS)
    label: Any = None


def _samples(request: GetRewardRequest) -> list[Sample]:
    """Return the samples of a batch. Raise DataError for lists of different lengths, and for a sequence that cannot be
    split."""
    prompts, labels = request.prompts or [""] * len(request.query), request.labels or [None] * len(request.query)
    if not len(request.query) == len(prompts) == len(labels):
        raise DataError(
            f"{len(request.query)} queries, {len(prompts)} prompts and {len(labels)} labels; expected equal numbers"
        )
    rows = zip(request.query, prompts, labels, strict=True)
    return [labeled_sample(*split_sequence(query, prompt), label) for query, prompt, label in rows]


def openrlhf_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["OpenRLHF, R1-Reward, slime"], route_class=StrictJSONRoute)

    async def get_reward(request: GetRewardRequest, flat: bool) -> GetRewardResponse:
        samples = await run_in_threadpool(_samples, request)
        rewards = await service.sample_rewards(samples) if samples else []
        scores = [(reward + 1) / 2 for reward in rewards]  # 0..1, by which samples are filtered
        if flat and len(rewards) == 1:
            return GetRewardResponse(rewards=rewards[0], scores=scores[0], extra_logs={})
        return GetRewardResponse(rewards=rewards, scores=scores, extra_logs={"judge_reward": rewards})

    @router.post("/get_reward")
    async def text(
        request: GetRewardRequest, flat: bool = Query(False, description="numbers instead of one-element lists")
    ) -> GetRewardResponse:
        """Return the rewards of sequences, in -1..1."""
        return await get_reward(request, flat)

    @router.post("/get_reward_mllm")
    async def multimodal(request: GetRewardRequest, flat: bool = Query(False)) -> MultimodalRewardResponse:
        """Return rewards alone, like R1-Reward's server."""
        return MultimodalRewardResponse(rewards=(await get_reward(request, flat)).rewards)

    @router.post("/slime", response_class=JSONResponse)
    async def slime(request: SlimeRequest) -> float:
        """Return the reward of one sample, as a bare number."""
        question, images = (request.prompt, ()) if isinstance(request.prompt, str) else read_conversation(request.prompt)
        sample = labeled_sample(question, request.response, request.label)
        return (await service.sample_rewards([replace(sample, images=sample.images + images)]))[0]

    return router
