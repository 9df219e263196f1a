"""NeMo-Gym's pairwise contract: ``/compare`` a group of Responses-API objects, ``/verify`` a rollout within its group."""

from __future__ import annotations

import json

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.judging.group_rewards import JudgedMatch
from rewardlab.serving.conversations import Sample, read_content, read_conversation
from rewardlab.serving.middleware import StrictJSONRoute
from rewardlab.serving.schemas import JsonObject
from rewardlab.serving.service import JudgeService
from rewardlab.types import Candidates


class CompareRequest(BaseModel):
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
    conversation_history: list[JsonObject] = Field(min_length=1)
    response_objs: list[JsonObject] = Field(min_length=1)
    principle: str | None = None


class VerifyRequest(BaseModel):
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
    responses_create_params: JsonObject
    response: JsonObject
    principle: str | None = None
    prompt_id: str | None = None


class Comparison(BaseModel):
    """One comparison on the contract's scales: scores 1 to 5, ranking 1 (first much better) to 6; null where it failed."""

    response_i: int
    response_j: int
    judge_idx: int = 0
    score_1: float | None = None
    score_2: float | None = None
    ranking: int | None = None


class CompareResponse(BaseModel):
    rewards: list[float | None]
    comparison_results: list[Comparison]
    metrics: dict[str, int | float | None]


def _output_text(response: JsonObject) -> str:
    """Return the texts of a Responses-API object's messages, without reasoning. Raises DataError for none."""
    output = response.get("output") or []
    if not isinstance(output, list):
        raise DataError(f"a response's output is {type(output).__name__}; expected a list of the Responses API's items")
    texts = [
        read_content(item.get("content"))[0]
        for item in output
        if isinstance(item, dict) and item.get("type", "message") == "message"
    ]
    if not any(text.strip() for text in texts):
        raise DataError("a response has no output_text; expected a Responses API object with a message in its output")
    return "\n".join(texts)


def _with_principle(question: str, principle: str | None) -> str:
    return f"{question}\n\nJudge by this principle: {principle}" if principle else question


def _comparison(match: JudgedMatch) -> Comparison:
    share = match.judgment.share_0 if match.judgment else None
    if share is None:
        return Comparison(response_i=match.first, response_j=match.second)
    scores = (1 + 4 * share, 5 - 4 * share)
    return Comparison(
        response_i=match.first,
        response_j=match.second,
        score_1=scores[0],
        score_2=scores[1],
        ranking=round(6 - 5 * share),
    )


def nemo_gym_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["NeMo-Gym"], route_class=StrictJSONRoute)

    @router.post("/compare")
    async def compare(request: CompareRequest) -> CompareResponse:
        """Return the rewards of a group, in -1..1; null where no comparison of a response could be judged. A single response
        has nothing to be compared with: 0 comparisons, a null reward."""
        service.admit_group(len(request.response_objs))
        question, references = read_conversation(request.conversation_history)
        responses = tuple(_output_text(response) for response in request.response_objs)
        if len(responses) == 1:
            return CompareResponse(rewards=[None], comparison_results=[], metrics={"num_failed": 0})
        group = Candidates("compare", _with_principle(question, request.principle), responses, await service.images(references))
        result = await service.compare_group(group)
        comparisons = [_comparison(match) for match in result.matches]
        scores = [score for row in comparisons for score in (row.score_1, row.score_2) if score is not None]
        mean = sum(scores) / len(scores) if scores else None
        deviation = None if mean is None else (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
        metrics: dict[str, int | float | None] = {
            "mean_individual_score": mean,
            "std_individual_score": deviation,
            "tiebreak_usage_rate": 0.0,
            "num_failed": sum(row.ranking is None for row in comparisons),
        }
        return CompareResponse(rewards=result.rewards, comparison_results=comparisons, metrics=metrics)

    @router.post("/verify")
    async def verify(request: VerifyRequest) -> JsonObject:
        """Return the request with the rollout's reward, when all of its group have come; 408 if they do not in time."""
        content = request.responses_create_params.get("input")
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        if not isinstance(messages, list):
            raise DataError("responses_create_params.input is neither a text nor a list of messages")
        question, references = read_conversation(messages)
        sample = Sample(_with_principle(question, request.principle), _output_text(request.response), references)
        if request.prompt_id:  # the same text may be asked as several prompts
            reward = await service.group_buffer.join(json.dumps([request.prompt_id, sample.key]), sample)
        else:
            reward = (await service.sample_rewards([sample]))[0]
        return {**request.model_dump(), "reward": reward}

    return router
