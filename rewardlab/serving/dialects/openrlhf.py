"""OpenRLHF's remote reward model, in its versions, and R1-Reward's; slime's, which asks the same of one sample.

``POST /get_reward`` and ``/get_reward_mllm``: ``{"query": [decoded prompt + response], "prompts": [...], "labels": [...]}``.
Samples of one prompt are compared with each other; OpenRLHF from 0.9 on sends them one by one, and they wait for their cohort.
Images do not travel in these requests: a label that is JSON may name uploaded ones, ``{"media": ["upload:ID"]}``, and an
``anchor`` to beat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.serving.middleware import SoundRoute
from rewardlab.serving.schemas import MAX_CHARS
from rewardlab.serving.service import JudgeService
from rewardlab.serving.text import Sample, conversation, labeled_sample, split_sequence

MAX_SAMPLES = 1024


class GetReward(BaseModel):
    """``query`` holds whole sequences, special tokens included; ``prompts`` what they begin with."""

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
    query: list[str] = Field(max_length=MAX_SAMPLES)
    prompts: list[str] | None = None
    labels: list[Any] | None = None


class Slime(BaseModel):
    """One sample, its prompt as text or as messages; the answer is the bare number."""

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
    prompt: Annotated[str, Field(max_length=4 * MAX_CHARS)] | list[dict[str, Any]]
    response: str = Field(max_length=MAX_CHARS)
    label: Any = None


def samples_of(request: GetReward) -> list[Sample]:
    """Raises DataError where lists differ in length or a sequence cannot be taken apart."""
    prompts, labels = request.prompts or [""] * len(request.query), request.labels or [None] * len(request.query)
    if not len(request.query) == len(prompts) == len(labels):
        raise DataError(
            f"{len(request.query)} queries, {len(prompts)} prompts and {len(labels)} labels; expected as many of each"
        )
    made = []
    for query, prompt, label in zip(request.query, prompts, labels, strict=True):
        made.append(labeled_sample(*split_sequence(query, prompt), label))
    return made


def routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["OpenRLHF, R1-Reward, slime"], route_class=SoundRoute)

    async def get_reward(request: GetReward, flat: bool) -> dict[str, Any]:
        rewards = await service.sample_rewards(samples_of(request)) if request.query else []
        scores = [(reward + 1) / 2 for reward in rewards]  # 0..1, by which samples are filtered
        if flat and len(rewards) == 1:
            return {"rewards": rewards[0], "scores": scores[0], "extra_logs": {}}
        return {"rewards": rewards, "scores": scores, "extra_logs": {"judge_reward": rewards}}

    @router.post("/get_reward")
    async def text(
        request: GetReward, flat: bool = Query(False, description="numbers in place of lists of one")
    ) -> dict[str, Any]:
        """Rewards of sequences, in -1..1; an empty batch has none."""
        return await get_reward(request, flat)

    @router.post("/get_reward_mllm")
    async def multimodal(request: GetReward, flat: bool = Query(False)) -> dict[str, Any]:
        """As R1-Reward's server is asked: rewards alone."""
        return {"rewards": (await get_reward(request, flat))["rewards"]}

    @router.post("/slime", response_class=JSONResponse)
    async def slime(request: Slime) -> float:
        """The reward of one sample, as a bare number."""
        asked, shown = (request.prompt, ()) if isinstance(request.prompt, str) else conversation(request.prompt)
        sample = labeled_sample(asked, request.response, request.label)
        return (await service.sample_rewards([replace(sample, images=sample.images + shown)]))[0]

    return router
