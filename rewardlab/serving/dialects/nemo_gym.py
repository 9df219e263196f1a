"""NeMo-Gym's pairwise contract: ``/compare`` a group of Responses-API objects, ``/verify`` a rollout among its cohort."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.serving.groups import GroupRewards
from rewardlab.serving.middleware import SoundRoute
from rewardlab.serving.schemas import MAX_RESPONSES
from rewardlab.serving.service import JudgeService
from rewardlab.serving.text import Sample, content_of, conversation
from rewardlab.types import Candidates


class Compare(BaseModel):
    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "conversation_history": [{"role": "user", "content": "What color is it?"}],
                "response_objs": [
                    {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}
                    for text in ("Red.", "Blue.")
                ],
            }
        },
    )
    conversation_history: list[dict[str, Any]] = Field(min_length=1)
    response_objs: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_RESPONSES)
    principle: str | None = None


class Verify(BaseModel):
    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "responses_create_params": {"input": "What color is it?"},
                "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Red."}]}]},
                "prompt_id": "1",
            }
        },
    )
    responses_create_params: dict[str, Any]
    response: dict[str, Any]
    principle: str | None = None
    prompt_id: str | None = None


def text_of(response: dict[str, Any]) -> str:
    """What a Responses-API object says: the texts of its messages, reasoning left out. Raises DataError for none."""
    output = response.get("output") or []
    if not isinstance(output, list):
        raise DataError(f"a response's output is {type(output).__name__}; expected a list of the Responses API's items")
    said = [
        content_of(item.get("content"))[0]
        for item in output
        if isinstance(item, dict) and item.get("type", "message") == "message"
    ]
    if not any(text.strip() for text in said):
        raise DataError("a response has no output_text; expected a Responses API object with a message in its output")
    return "\n".join(said)


def with_principle(question: str, principle: str | None) -> str:
    return f"{question}\n\nJudge by this principle: {principle}" if principle else question


def scores_of(found: GroupRewards) -> list[dict[str, Any]]:
    """Each comparison on the contract's scales: scores 1 to 5, ranking 1 (first much better) to 6; null where it failed."""
    rows = []
    for match in found.matches:
        share = match.judgment.share_0 if match.judgment else None
        told: dict[str, Any] = {"response_i": match.first, "response_j": match.second, "judge_idx": 0}
        told |= {"score_1": None, "score_2": None, "ranking": None}
        if share is not None:
            told |= {"score_1": 1 + 4 * share, "score_2": 5 - 4 * share, "ranking": round(6 - 5 * share)}
        rows.append(told)
    return rows


def routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["NeMo-Gym"], route_class=SoundRoute)

    @router.post("/compare")
    async def compare(request: Compare) -> dict[str, Any]:
        """Rewards of a group, in -1..1; null where no comparison of a response could be judged. One alone has nothing to lose
        or win against: 0 comparisons, a null reward."""
        question, references = conversation(request.conversation_history)
        responses = tuple(text_of(one) for one in request.response_objs)
        if len(responses) == 1:
            return {"rewards": [None], "comparison_results": [], "metrics": {"num_failed": 0}}
        group = Candidates("compare", with_principle(question, request.principle), responses, await service.images(references))
        found = await service.play(group)
        results = scores_of(found)
        every = [row[name] for row in results for name in ("score_1", "score_2") if row[name] is not None]
        mean = sum(every) / len(every) if every else None
        spread = None if mean is None else (sum((one - mean) ** 2 for one in every) / len(every)) ** 0.5
        metrics = {"mean_individual_score": mean, "std_individual_score": spread, "tiebreak_usage_rate": 0.0}
        failed = sum(row["ranking"] is None for row in results)
        return {"rewards": found.rewards, "comparison_results": results, "metrics": metrics | {"num_failed": failed}}

    @router.post("/verify")
    async def verify(request: Verify) -> dict[str, Any]:
        """The request with the rollout's reward, when those of its prompt have come; 504 where they do not in time."""
        asked = request.responses_create_params.get("input")
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        if not isinstance(messages, list):
            raise DataError("responses_create_params.input is neither a text nor a list of messages")
        question, references = conversation(messages)
        sample = Sample(with_principle(question, request.principle), text_of(request.response), references)
        if request.prompt_id:  # the same text may be asked as several prompts
            reward = await service.cohorts.join(json.dumps([request.prompt_id, sample.key]), sample)
        else:
            reward = (await service.sample_rewards([sample]))[0]
        return {**request.model_dump(), "reward": reward}

    return router
